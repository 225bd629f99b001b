"""Families of small classes: the object-oriented part of an introductory course."""

from jax_lm.data.corpus.tasks import Family

FAMILIES: tuple[Family, ...] = (
    Family(
        name="stack",
        names=("Stack", "MyStack", "SimpleStack", "ListStack", "ArrayStack"),
        docs=(
            "A stack with push, pop, peek, is_empty and size.",
            "A last-in first-out stack with methods push, pop, peek, is_empty and size.",
            "Implement a stack: push, pop, peek, is_empty, size.",
            "This class is a stack that supports push, pop, peek, is_empty and size.",
        ),
        body="""
def __init__(self):
    self.items = []

def push(self, item):
    self.items.append(item)

def pop(self):
    return self.items.pop()

def peek(self):
    return self.items[-1]

def is_empty(self):
    return len(self.items) == 0

def size(self):
    return len(self.items)
""",
        script=(
            "s = $f()",
            "assert s.is_empty() == True",
            "s.push(4)",
            "s.push(7)",
            "assert s.peek() == 7",
            "assert s.size() == 2",
            "assert s.pop() == 7",
            "assert s.pop() == 4",
            "assert s.is_empty() == True",
            "assert $f().size() == 0",
        ),
    ),
    Family(
        name="queue",
        names=("Queue", "MyQueue", "SimpleQueue", "FIFOQueue", "ListQueue"),
        docs=(
            "A queue with enqueue, dequeue, is_empty and size.",
            "A first-in first-out queue with methods enqueue, dequeue, is_empty and size.",
            "Implement a queue: enqueue, dequeue, is_empty, size.",
            "This class is a queue that supports enqueue, dequeue, is_empty and size.",
        ),
        body="""
def __init__(self):
    self.items = []

def enqueue(self, item):
    self.items.append(item)

def dequeue(self):
    return self.items.pop(0)

def is_empty(self):
    return len(self.items) == 0

def size(self):
    return len(self.items)
""",
        script=(
            "q = $f()",
            "assert q.is_empty() == True",
            "q.enqueue(4)",
            "q.enqueue(7)",
            "assert q.size() == 2",
            "assert q.is_empty() == False",
            "assert q.dequeue() == 4",
            "assert q.dequeue() == 7",
            "assert q.size() == 0",
        ),
    ),
    Family(
        name="min_stack",
        names=("MinStack", "StackWithMin", "MinimumStack", "MinTrackingStack"),
        docs=(
            "A stack with push, pop, top and get_min.",
            "A stack that also returns its minimum: push, pop, top, get_min.",
            "Implement a min stack with methods push, pop, top and get_min.",
            "This class is a stack whose get_min returns the smallest element, with push, pop and top.",
        ),
        body="""
def __init__(self):
    self.items = []

def push(self, item):
    self.items.append(item)

def pop(self):
    return self.items.pop()

def top(self):
    return self.items[-1]

def get_min(self):
    return min(self.items)
""",
        script=(
            "s = $f()",
            "s.push(5)",
            "s.push(2)",
            "s.push(8)",
            "assert s.get_min() == 2",
            "assert s.top() == 8",
            "assert s.pop() == 8",
            "assert s.pop() == 2",
            "assert s.get_min() == 5",
        ),
    ),
    Family(
        name="binary_tree",
        names=("BinaryTree", "BinarySearchTree", "BST", "SearchTree"),
        docs=(
            "A binary search tree with insert and inorder.",
            "A binary tree node with a value, insert and inorder traversal.",
            "Implement a binary search tree: insert adds a value, inorder lists the values in order.",
            "This class is a binary search tree that supports insert and inorder.",
        ),
        body="""
def __init__(self, value):
    self.value = value
    self.left = self.right = None

def insert(self, value):
    if value < self.value:
        self.left = self.left.insert(value) if self.left else $f(value)
    else:
        self.right = self.right.insert(value) if self.right else $f(value)
    return self

def inorder(self):
    left = self.left.inorder() if self.left else []
    right = self.right.inorder() if self.right else []
    return left + [self.value] + right
""",
        script=(
            "tree = $f(5)",
            "assert tree.inorder() == [5]",
            "tree.insert(3)",
            "tree.insert(8)",
            "tree.insert(4)",
            "tree.insert(1)",
            "assert tree.inorder() == [1, 3, 4, 5, 8]",
            "assert tree.left.value == 3",
            "assert tree.left.right.value == 4",
            "assert tree.right.left is None",
        ),
    ),
    Family(
        name="tree_node",
        names=("TreeNode", "BinaryTreeNode", "BTNode", "BinaryNode"),
        docs=(
            "A node of a binary tree with a value, a left and a right child.",
            "A tree node with value, left and right.",
            "Implement a binary tree node that stores value, left and right.",
            "This class is a node of a binary tree, left and right default to None.",
        ),
        body="""
def __init__(self, value, left=None, right=None):
    self.value = value
    self.left = left
    self.right = right
""",
        script=(
            "leaf = $f(3)",
            "assert leaf.value == 3",
            "assert leaf.left is None",
            "assert leaf.right is None",
            "root = $f(1, leaf, $f(7))",
            "assert root.left.value == 3",
            "assert root.right.value == 7",
        ),
    ),
    Family(
        name="linked_list",
        names=("LinkedList", "SinglyLinkedList", "MyLinkedList", "SimpleLinkedList"),
        docs=(
            "A singly linked list with append and to_list.",
            "A linked list with methods append and to_list.",
            "Implement a linked list: append adds a value at the end, to_list returns the values.",
            "This class is a linked list that supports append and to_list.",
        ),
        body="""
def __init__(self, value=None):
    self.value = value
    self.next = None

def append(self, value):
    current = self
    while current.next:
        current = current.next
    current.next = $f(value)

def to_list(self):
    result = []
    current = self.next
    while current:
        result.append(current.value)
        current = current.next
    return result
""",
        script=(
            "items = $f()",
            "assert items.to_list() == []",
            "items.append(4)",
            "items.append(2)",
            "items.append(9)",
            "assert items.to_list() == [4, 2, 9]",
            "assert $f().to_list() == []",
        ),
    ),
    Family(
        name="node",
        names=("Node", "ListNode", "LinkedListNode", "LinkedNode"),
        docs=(
            "A node of a linked list with a value and the next node.",
            "A linked list node with value and next.",
            "Implement a node that stores value and next, which is None by default.",
            "This class is a node of a singly linked list.",
        ),
        body="""
def __init__(self, value, next=None):
    self.value = value
    self.next = next
""",
        script=(
            "last = $f(5)",
            "assert last.value == 5",
            "assert last.next is None",
            "first = $f(2, last)",
            "assert first.value == 2",
            "assert first.next is last",
        ),
    ),
    Family(
        name="counter",
        names=("Counter", "SimpleCounter", "ClickCounter", "TallyCounter", "MyCounter"),
        docs=(
            "A counter with count, increment, decrement and reset.",
            "A counter that starts at 0 with methods increment, decrement and reset.",
            "Implement a counter: increment, decrement, reset, and the attribute count.",
            "This class counts up with increment, down with decrement and back to 0 with reset.",
        ),
        body="""
def __init__(self):
    self.count = 0

def increment(self):
    self.count += 1

def decrement(self):
    self.count -= 1

def reset(self):
    self.count = 0
""",
        script=(
            "c = $f()",
            "assert c.count == 0",
            "c.increment()",
            "c.increment()",
            "c.increment()",
            "c.decrement()",
            "assert c.count == 2",
            "c.reset()",
            "assert c.count == 0",
        ),
    ),
    Family(
        name="bank_account",
        names=("BankAccount", "Account", "SavingsAccount", "CheckingAccount"),
        docs=(
            "A bank account with balance, deposit and withdraw.",
            "A bank account with methods deposit and withdraw, which raises ValueError on insufficient funds.",
            "Implement a bank account: balance, deposit, withdraw.",
            "This class is a bank account whose balance changes with deposit and withdraw.",
        ),
        body="""
def __init__(self, balance=0):
    self.balance = balance

def deposit(self, amount):
    self.balance += amount

def withdraw(self, amount):
    if amount > self.balance:
        raise ValueError("Insufficient funds")
    self.balance -= amount
""",
        script=(
            "account = $f()",
            "assert account.balance == 0",
            "account.deposit(100)",
            "account.withdraw(30)",
            "assert account.balance == 70",
            "try:\n    account.withdraw(71)\n    assert False\nexcept ValueError:\n    pass",
            "assert account.balance == 70",
            "account.withdraw(70)",
            "assert account.balance == 0",
            "assert $f(50).balance == 50",
        ),
    ),
    Family(
        name="point",
        names=("Point", "Point2D", "Coordinate", "XYPoint"),
        docs=(
            "A point in the plane with x, y and distance_to.",
            "A 2D point with coordinates x and y and a method distance_to.",
            "Implement a point: x, y, distance_to another point.",
            "This class is a point whose distance_to returns the Euclidean distance to another point.",
        ),
        body="""
def __init__(self, x, y):
    self.x = x
    self.y = y

def distance_to(self, other):
    return ((self.x - other.x) ** 2 + (self.y - other.y) ** 2) ** 0.5
""",
        script=(
            "p = $f(1, 2)",
            "q = $f(4, 6)",
            "assert p.x == 1",
            "assert p.y == 2",
            "assert p.distance_to(q) == 5.0",
            "assert q.distance_to(p) == 5.0",
            "assert p.distance_to(p) == 0.0",
        ),
    ),
    Family(
        name="vector2d",
        names=("Vector2D", "Vector", "Vec2", "Vector2"),
        docs=(
            "A 2D vector with x, y, addition and dot.",
            "A vector in the plane that supports +, - and dot.",
            "Implement a 2D vector: __add__, __sub__, dot.",
            "This class is a vector with components x and y that can be added, subtracted and dotted.",
        ),
        body="""
def __init__(self, x, y):
    self.x = x
    self.y = y

def __add__(self, other):
    return $f(self.x + other.x, self.y + other.y)

def __sub__(self, other):
    return $f(self.x - other.x, self.y - other.y)

def dot(self, other):
    return self.x * other.x + self.y * other.y
""",
        script=(
            "a = $f(1, 2)",
            "b = $f(3, 5)",
            "c = a + b",
            "assert (c.x, c.y) == (4, 7)",
            "d = b - a",
            "assert (d.x, d.y) == (2, 3)",
            "assert a.dot(b) == 13",
            "assert (a.x, a.y) == (1, 2)",
        ),
    ),
    Family(
        name="rectangle",
        names=("Rectangle", "Rect", "RectangleShape", "MyRectangle"),
        docs=(
            "A rectangle with width, height, area and perimeter.",
            "A rectangle with methods area and perimeter.",
            "Implement a rectangle: area, perimeter.",
            "This class is a rectangle of a given width and height that computes its area and perimeter.",
        ),
        body="""
def __init__(self, width, height):
    self.width = width
    self.height = height

def area(self):
    return self.width * self.height

def perimeter(self):
    return 2 * (self.width + self.height)
""",
        script=(
            "r = $f(3, 4)",
            "assert r.width == 3",
            "assert r.height == 4",
            "assert r.area() == 12",
            "assert r.perimeter() == 14",
            "assert $f(1, 6).perimeter() == 14",
        ),
    ),
    Family(
        name="square",
        names=("Square", "SquareShape", "MySquare"),
        docs=(
            "A square with side, area and perimeter.",
            "A square of a given side with methods area and perimeter.",
            "Implement a square: area, perimeter.",
            "This class is a square that computes its area and perimeter.",
        ),
        body="""
def __init__(self, side):
    self.side = side

def area(self):
    return self.side ** 2

def perimeter(self):
    return 4 * self.side
""",
        script=(
            "s = $f(3)",
            "assert s.side == 3",
            "assert s.area() == 9",
            "assert s.perimeter() == 12",
            "assert $f(5).area() == 25",
        ),
    ),
    Family(
        name="circle",
        names=("Circle", "CircleShape", "MyCircle"),
        docs=(
            "A circle with radius, area and circumference.",
            "A circle of a given radius with methods area and circumference.",
            "Implement a circle: area, circumference.",
            "This class is a circle that computes its area and circumference.",
        ),
        body="""
def __init__(self, radius):
    self.radius = radius

def area(self):
    return 3.14159 * self.radius ** 2

def circumference(self):
    return 2 * 3.14159 * self.radius
""",
        script=(
            "c = $f(2)",
            "assert c.radius == 2",
            "assert round(c.area(), 2) == 12.57",
            "assert round(c.circumference(), 2) == 12.57",
            "assert round($f(3).area(), 1) == 28.3",
            "assert round($f(3).circumference(), 1) == 18.8",
        ),
    ),
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
