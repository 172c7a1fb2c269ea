// Objects of Python in values of C++.
#pragma once

#include <ATen/core/ivalue.h>

namespace narrowcast::classes {

// Functions of CPython's interface (https://docs.python.org/3/c-api/init.html), by which an object can be released on
// any thread. Null in a program without Python.
struct Interpreter {
  int (*holds_lock)() = nullptr;  // PyGILState_Check
  int (*call_on_main_thread)(int (*call)(void*),
                             void* argument) = nullptr;  // Py_AddPendingCall: 0, or -1 if it is full

  // Those of this process.
  static const Interpreter& of_this_process();
};

// Returns `object`, a Python object, as a value that may be released on any thread, also by one that another thread
// waits for while it holds Python's global lock (GIL). A usual value takes the lock to release its object: a thread of
// Gloo then waits for the thread that destroys the process group, which holds the lock, and joins Gloo's. This one
// gives the object to Python's main thread or to the next caller of this function, unless the releasing thread holds
// the lock itself. Call it where the lock may be taken.
c10::IValue guarded_object(const c10::IValue& object, const Interpreter& interpreter = Interpreter::of_this_process());

}  // namespace narrowcast::classes
