"""Families of classes on points, vectors and plane figures."""

from builtin_model.tasks import Family

FAMILIES: tuple[Family, ...] = (
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
)
