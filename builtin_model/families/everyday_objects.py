"""Families of classes on everyday things: people, animals, cars, books, shopping."""

from builtin_model.tasks import Family

FAMILIES: tuple[Family, ...] = (
    Family(
        name="person",
        names=("Person", "Human", "User", "Friend"),
        docs=(
            "A person with name, age and greet.",
            "A person with a name, an age and a method greet that says hello.",
            "Implement a person: name, age, greet.",
            "This class is a person whose greet returns a greeting with the name.",
        ),
        body="""
def __init__(self, name, age):
    self.name = name
    self.age = age

def greet(self):
    return f"Hello, my name is {self.name}"
""",
        script=(
            "p = $f('Ada', 36)",
            "assert p.name == 'Ada'",
            "assert p.age == 36",
            "assert 'Ada' in p.greet()",
            "assert $f('Bob', 7).greet() == 'Hello, my name is Bob'",
        ),
    ),
    Family(
        name="student",
        names=("Student", "Pupil", "StudentRecord", "Learner"),
        docs=(
            "A student with name, grades, add_grade and average.",
            "A student with a name and methods add_grade and average.",
            "Implement a student: add_grade, average.",
            "This class is a student that collects grades with add_grade and computes their average.",
        ),
        body="""
def __init__(self, name):
    self.name = name
    self.grades = []

def add_grade(self, grade):
    self.grades.append(grade)

def average(self):
    return sum(self.grades) / len(self.grades)
""",
        script=(
            "s = $f('Ada')",
            "assert s.name == 'Ada'",
            "s.add_grade(90)",
            "s.add_grade(70)",
            "assert s.grades == [90, 70]",
            "assert s.average() == 80.0",
            "assert $f('Bob').grades == []",
        ),
    ),
    Family(
        name="dog",
        names=("Dog", "Puppy", "Hound", "MyDog"),
        docs=(
            "A dog with a name and a method speak.",
            "A dog with name and speak, which says Woof.",
            "Implement a dog: name, speak.",
            "This class is a dog whose speak returns that it says Woof!.",
        ),
        body="""
def __init__(self, name):
    self.name = name

def speak(self):
    return f"{self.name} says Woof!"
""",
        script=(
            "d = $f('Rex')",
            "assert d.name == 'Rex'",
            "assert d.speak() == 'Rex says Woof!'",
            "assert $f('Fido').speak() == 'Fido says Woof!'",
        ),
    ),
    Family(
        name="cat",
        names=("Cat", "Kitten", "MyCat"),
        docs=(
            "A cat with a name and a method speak.",
            "A cat with name and speak, which says Meow.",
            "Implement a cat: name, speak.",
            "This class is a cat whose speak returns that it says Meow!.",
        ),
        body="""
def __init__(self, name):
    self.name = name

def speak(self):
    return f"{self.name} says Meow!"
""",
        script=(
            "c = $f('Tom')",
            "assert c.name == 'Tom'",
            "assert c.speak() == 'Tom says Meow!'",
            "assert $f('Kit').speak() == 'Kit says Meow!'",
        ),
    ),
    Family(
        name="animal",
        names=("Animal", "Pet", "Creature"),
        docs=(
            "An animal with a name, a sound and a method speak.",
            "An animal with name, sound and speak.",
            "Implement an animal: name, sound, speak.",
            "This class is an animal whose speak tells its name and its sound.",
        ),
        body="""
def __init__(self, name, sound):
    self.name = name
    self.sound = sound

def speak(self):
    return f"{self.name} says {self.sound}"
""",
        script=(
            "a = $f('Cow', 'Moo')",
            "assert a.name == 'Cow'",
            "assert a.sound == 'Moo'",
            "assert a.speak() == 'Cow says Moo'",
            "assert $f('Duck', 'Quack').speak() == 'Duck says Quack'",
        ),
    ),
    Family(
        name="temperature",
        names=("Temperature", "Thermometer", "CelsiusTemperature", "TemperatureConverter"),
        docs=(
            "A temperature in Celsius with to_fahrenheit and to_kelvin.",
            "A Celsius temperature with methods to_fahrenheit and to_kelvin.",
            "Implement a temperature: celsius, to_fahrenheit, to_kelvin.",
            "This class stores degrees Celsius and converts them with to_fahrenheit and to_kelvin.",
        ),
        body="""
def __init__(self, celsius):
    self.celsius = celsius

def to_fahrenheit(self):
    return self.celsius * 9 / 5 + 32

def to_kelvin(self):
    return self.celsius + 273.15
""",
        script=(
            "t = $f(100)",
            "assert t.celsius == 100",
            "assert t.to_fahrenheit() == 212.0",
            "assert round(t.to_kelvin(), 2) == 373.15",
            "assert $f(-40).to_fahrenheit() == -40.0",
            "assert round($f(0).to_kelvin(), 2) == 273.15",
        ),
    ),
    Family(
        name="calculator",
        names=("Calculator", "SimpleCalculator", "Calc", "BasicCalculator"),
        docs=(
            "A calculator with add, subtract, multiply and divide.",
            "A calculator with methods add, subtract, multiply and divide for two numbers.",
            "Implement a calculator: add, subtract, multiply, divide.",
            "This class is a calculator that supports add, subtract, multiply and divide.",
        ),
        body="""
def add(self, a, b):
    return a + b

def subtract(self, a, b):
    return a - b

def multiply(self, a, b):
    return a * b

def divide(self, a, b):
    return a / b
""",
        script=(
            "c = $f()",
            "assert c.add(2, 3) == 5",
            "assert c.subtract(2, 3) == -1",
            "assert c.multiply(4, 3) == 12",
            "assert c.divide(9, 2) == 4.5",
        ),
    ),
    Family(
        name="car",
        names=("Car", "Vehicle", "Automobile", "MyCar"),
        docs=(
            "A car with make, model, speed, accelerate and brake.",
            "A car with a make, a model and methods accelerate and brake that change its speed.",
            "Implement a car: make, model, speed, accelerate, brake.",
            "This class is a car whose speed starts at 0 and changes with accelerate and brake.",
        ),
        body="""
def __init__(self, make, model):
    self.make = make
    self.model = model
    self.speed = 0

def accelerate(self, amount):
    self.speed += amount

def brake(self, amount):
    self.speed = max(0, self.speed - amount)
""",
        script=(
            "c = $f('Audi', 'A4')",
            "assert c.make == 'Audi'",
            "assert c.model == 'A4'",
            "assert c.speed == 0",
            "c.accelerate(50)",
            "c.brake(20)",
            "assert c.speed == 30",
            "c.brake(100)",
            "assert c.speed == 0",
        ),
    ),
    Family(
        name="book",
        names=("Book", "Novel", "LibraryBook"),
        docs=(
            "A book with title, author and __str__.",
            "A book with a title and an author that prints as title by author.",
            "Implement a book: title, author, __str__.",
            "This class is a book whose string form is its title by its author.",
        ),
        body="""
def __init__(self, title, author):
    self.title = title
    self.author = author

def __str__(self):
    return f"{self.title} by {self.author}"
""",
        script=(
            "b = $f('Dune', 'Herbert')",
            "assert b.title == 'Dune'",
            "assert b.author == 'Herbert'",
            "assert str(b) == 'Dune by Herbert'",
            "assert str($f('Emma', 'Austen')) == 'Emma by Austen'",
        ),
    ),
    Family(
        name="employee",
        names=("Employee", "Worker", "StaffMember"),
        docs=(
            "An employee with name, salary and give_raise.",
            "An employee with a name, a salary and a method give_raise that adds an amount.",
            "Implement an employee: name, salary, give_raise.",
            "This class is an employee whose salary grows with give_raise.",
        ),
        body="""
def __init__(self, name, salary):
    self.name = name
    self.salary = salary

def give_raise(self, amount):
    self.salary += amount
""",
        script=(
            "e = $f('Ada', 1000)",
            "assert e.name == 'Ada'",
            "e.give_raise(200)",
            "assert e.salary == 1200",
            "assert $f('Bob', 500).salary == 500",
        ),
    ),
    Family(
        name="shopping_cart",
        names=("ShoppingCart", "Cart", "Basket", "ShoppingBasket"),
        docs=(
            "A shopping cart with add_item, remove_item and total.",
            "A shopping cart with methods add_item, remove_item and total of the prices.",
            "Implement a shopping cart: add_item, remove_item, total.",
            "This class is a shopping cart that maps item names to prices, with add_item, remove_item and total.",
        ),
        body="""
def __init__(self):
    self.items = {}

def add_item(self, name, price):
    self.items[name] = price

def remove_item(self, name):
    del self.items[name]

def total(self):
    return sum(self.items.values())
""",
        script=(
            "cart = $f()",
            "assert cart.total() == 0",
            "cart.add_item('pen', 2)",
            "cart.add_item('book', 12)",
            "assert cart.total() == 14",
            "cart.remove_item('pen')",
            "assert cart.total() == 12",
        ),
    ),
    Family(
        name="todo_list",
        names=("TodoList", "ToDoList", "TaskList", "TaskManager"),
        docs=(
            "A to-do list with add, remove and count.",
            "A list of tasks with methods add, remove and count.",
            "Implement a to-do list: add, remove, count.",
            "This class is a to-do list that keeps tasks, with add, remove and count.",
        ),
        body="""
def __init__(self):
    self.tasks = []

def add(self, task):
    self.tasks.append(task)

def remove(self, task):
    self.tasks.remove(task)

def count(self):
    return len(self.tasks)
""",
        script=(
            "t = $f()",
            "assert t.count() == 0",
            "t.add('read')",
            "t.add('cook')",
            "assert t.tasks == ['read', 'cook']",
            "t.remove('read')",
            "assert t.tasks == ['cook']",
            "assert t.count() == 1",
        ),
    ),
)
