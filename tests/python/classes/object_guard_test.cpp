#include "python/classes/object_guard.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace narrowcast::classes {
namespace {

// Stands in for Python: the thread that holds the lock, and the calls that wait for the main thread.
struct FakePython {
  static inline bool holds_lock = false;
  static inline bool is_full = false;
  static inline std::vector<std::pair<int (*)(void*), void*>> calls;

  static Interpreter interpreter() {
    holds_lock = false;
    is_full = false;
    calls.clear();
    return {.holds_lock = [] { return holds_lock ? 1 : 0; },
            .call_on_main_thread =
                [](int (*call)(void*), void* argument) {
                  if (is_full) return -1;
                  calls.emplace_back(call, argument);
                  return 0;
                }};
  }
  static void run_calls() {
    for (const auto& [call, argument] : std::exchange(calls, {})) EXPECT_EQ(call(argument), 0);
  }
};

// Counts the objects of this kind that exist.
class FakeObject final : public c10::ivalue::PyObjectHolder {
 public:
  explicit FakeObject(int& count) : count_(count) { ++count_; }
  ~FakeObject() override { --count_; }
  FakeObject(const FakeObject&) = delete;
  FakeObject& operator=(const FakeObject&) = delete;
  PyObject* getPyObject() override { return nullptr; }
  c10::InferredType tryToInferType() override { return c10::InferredType(std::string("fake")); }
  c10::IValue toIValue(const c10::TypePtr& /*type*/, std::optional<int32_t> /*n*/) override { return 7; }
  std::string toStr() override { return "fake"; }
  std::vector<at::Tensor> extractTensors() override { return {at::ones({3})}; }

 private:
  int& count_;
};

c10::IValue fake_object(int& count) {
  return c10::IValue(c10::intrusive_ptr<c10::ivalue::PyObjectHolder>(c10::make_intrusive<FakeObject>(count)));
}

void release_on_another_thread(c10::IValue value) {
  std::thread([held = std::move(value)]() mutable { held = {}; }).join();
}

TEST(ObjectGuard, AnObjectIsReleasedOnPythonsMainThread) {
  const Interpreter interpreter = FakePython::interpreter();
  int count = 0;
  release_on_another_thread(guarded_object(fake_object(count), interpreter));
  EXPECT_EQ(count, 1) << "it took the lock";
  FakePython::run_calls();
  EXPECT_EQ(count, 0);
}

TEST(ObjectGuard, AThreadWithTheLockReleasesAnObjectItself) {
  const Interpreter interpreter = FakePython::interpreter();
  int count = 0;
  c10::IValue value = guarded_object(fake_object(count), interpreter);
  FakePython::holds_lock = true;
  value = {};
  EXPECT_EQ(count, 0);
  EXPECT_TRUE(FakePython::calls.empty());
}

TEST(ObjectGuard, TheNextObjectReleasesThoseForWhichTheMainThreadHasNoTime) {
  const Interpreter interpreter = FakePython::interpreter();
  int count = 0;
  release_on_another_thread(guarded_object(fake_object(count), interpreter));
  const c10::IValue next = guarded_object(fake_object(count), interpreter);
  EXPECT_EQ(count, 1);
  FakePython::holds_lock = true;  // `next` is released here, while `count` exists.
}

TEST(ObjectGuard, AnObjectWaitsForTheNextOneIfTooManyCallsWait) {
  const Interpreter interpreter = FakePython::interpreter();
  int count = 0;
  FakePython::is_full = true;
  release_on_another_thread(guarded_object(fake_object(count), interpreter));
  FakePython::is_full = false;
  release_on_another_thread(guarded_object(fake_object(count), interpreter));
  FakePython::run_calls();
  EXPECT_EQ(count, 0);
}

TEST(ObjectGuard, AProgramWithoutPythonReleasesAnObjectItself) {
  int count = 0;
  release_on_another_thread(guarded_object(fake_object(count)));
  EXPECT_EQ(count, 0);
}

TEST(ObjectGuard, AnObjectIsTheOneThatWasGiven) {
  int count = 0;
  const auto held = guarded_object(fake_object(count)).toPyObjectHolder();
  EXPECT_EQ(held->toStr(), "fake");
  EXPECT_EQ(held->toIValue(c10::IntType::get(), std::nullopt).toInt(), 7);
  EXPECT_EQ(held->extractTensors().size(), 1);
  EXPECT_FALSE(held->tryToInferType().success());
}

}  // namespace
}  // namespace narrowcast::classes
