"""Families of classes that hold items or a balance: stacks, queues, trees, linked lists, accounts."""

from builtin_model.tasks import Family

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
)
