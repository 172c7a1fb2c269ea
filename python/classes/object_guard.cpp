#include "python/classes/object_guard.h"

#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <dlfcn.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace narrowcast::classes {
namespace {

using Holder = c10::intrusive_ptr<c10::ivalue::PyObjectHolder>;

// Objects that Python's main thread is to release. Never destroyed: the interpreter may end first.
class ReleasedObjects {
 public:
  static ReleasedObjects& get() {
    static auto& objects = *std::make_unique<ReleasedObjects>().release();
    return objects;
  }

  // If too many calls wait already, the objects wait for the next one.
  void add(Holder object, const Interpreter& interpreter) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      objects_.push_back(std::move(object));
    }
    interpreter.call_on_main_thread(
        [](void* /*argument*/) {
          get().release();
          return 0;
        },
        nullptr);
  }

  // Objects may run code of their own, so the mutex is not held.
  void release() {
    std::vector<Holder> objects;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      objects.swap(objects_);
    }
  }

 private:
  std::mutex mutex_;
  std::vector<Holder> objects_;
};

class GuardedObject final : public c10::ivalue::PyObjectHolder {
 public:
  GuardedObject(Holder object, const Interpreter& interpreter)
      : object_(std::move(object)), interpreter_(interpreter) {}
  ~GuardedObject() override {
    const bool has_python = interpreter_.holds_lock != nullptr && interpreter_.call_on_main_thread != nullptr;
    if (has_python && interpreter_.holds_lock() == 0) {
      ReleasedObjects::get().add(std::move(object_), interpreter_);
    }
  }
  GuardedObject(const GuardedObject&) = delete;
  GuardedObject& operator=(const GuardedObject&) = delete;

  PyObject* getPyObject() override { return object_->getPyObject(); }
  c10::InferredType tryToInferType() override { return object_->tryToInferType(); }
  c10::IValue toIValue(const c10::TypePtr& type, std::optional<int32_t> n) override {
    return object_->toIValue(type, n);
  }
  std::string toStr() override { return object_->toStr(); }
  std::vector<at::Tensor> extractTensors() override { return object_->extractTensors(); }

 private:
  Holder object_;
  const Interpreter interpreter_;
};

template <class Function>
void find_function(const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace

const Interpreter& Interpreter::of_this_process() {
  static const Interpreter found = [] {
    Interpreter interpreter;
    find_function("PyGILState_Check", interpreter.holds_lock);
    find_function("Py_AddPendingCall", interpreter.call_on_main_thread);
    return interpreter;
  }();
  return found;
}

// The main thread may run no code of Python for long, for instance while it waits for a thread that trains.
c10::IValue guarded_object(const c10::IValue& object, const Interpreter& interpreter) {
  ReleasedObjects::get().release();
  return c10::IValue(Holder(c10::make_intrusive<GuardedObject>(object.toPyObjectHolder(), interpreter)));
}

}  // namespace narrowcast::classes
