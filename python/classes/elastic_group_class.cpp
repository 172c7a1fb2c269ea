// torch.classes.narrowcast.ElasticGroup: narrowcast::ElasticGroup for Python, whose functions make the objects of a
// group and take the steps. python/narrowcast/elastic.py is its only user.
//
//   own = torch.classes.narrowcast.ElasticGroup({"silence_seconds": 30})
//   own.add_tensor("weight", weight)
//   own.run(ctypes.cast(answer, ctypes.c_void_p).value)
//
// This library knows nothing of Python. So run() asks for each thing through a C function `answer`, on the thread that
// called run(). The function takes Python's global lock (GIL), which run() does not hold. Tensors pass by give() and
// given(), an error of a peer by fail().
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <narrowcast/elastic_group.h>
#include <narrowcast/network_errors.h>
#include "hooks/row/option_values.h"
#include "python/classes/dictionaries.h"
#include "python/classes/silence.h"
#include "trainer/ddp/process_group/group_watch.h"

namespace narrowcast::classes {
namespace {

// The requests of run(). python/narrowcast/elastic.py has the same numbers.
enum class Request : int64_t {
  kMake = 0,         // the object of a new group: group()
  kDrop = 1,         // drop the object and all that refers to the group
  kStep = 2,         // take the step `number`; is there another one?
  kSave = 3,         // give() the tensors of part `number`
  kLoad = 4,         // load the tensors given() into part `number`
  kSyncBuffers = 5,  // broadcast rank 0's buffers
  kAreSettled = 6,   // will the buckets of later steps be those of the last step?
  kSaveHooks = 7,    // give() this rank's state of the object's hooks
  kLoadHooks = 8,    // load hook_states()
  kRecovered = 9,    // recovery() has ended
};

// The answers.
enum class Answer : int64_t {
  kFailed = 0,  // The program has failed, and keeps its exception.
  kLost = 1,    // A peer or the network has failed: fail() was called.
  kNo = 2,
  kYes = 3,
  kDiffers = 4,  // ValueError in kMake, which may be because ranks differ: fail() was called.
};

using AnswerFunction = int64_t (*)(int64_t request, int64_t number);

// Ends run() after an exception of the program, which Python then raises again. It is no std::runtime_error, because
// such an error counts as a loss while a rank is silent.
struct ProgramError : std::exception {
  const char* what() const noexcept override { return "an error of the program"; }
};

constexpr double kLongestSeconds = 1e6;

std::chrono::milliseconds parse_milliseconds(const std::string& name, const hooks::OptionValue& value) {
  double seconds = 0;
  hooks::read_option(name, value, seconds);
  TORCH_CHECK_VALUE(seconds >= 0 && seconds <= kLongestSeconds, name, ": must be in 0..", kLongestSeconds, ", but is ",
                    seconds);
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

StateDict to_dict_without_copies(const ElasticState::Tensors& tensors) {
  StateDict dict;
  for (const auto& [name, tensor] : tensors) dict.insert(name, tensor);
  return dict;
}

class ElasticGroupClass final : public torch::CustomClassHolder {
 public:
  // ElasticGroup's constructor. `given`: "timeout_seconds", "silence_seconds", "first_step" and "copies_state".
  // c10::ValueError and c10::TypeError name a wrong option, or what is wrong with this process's place in the job.
  explicit ElasticGroupClass(const OptionDict& given) : elastic_(WorkerEnv::from_environment(), options_of(given)) {}

  // ElasticState::add.
  void add_tensor(const std::string& name, const at::Tensor& tensor) { state_.add(name, tensor); }
  // The functions are kSave and kLoad of part `number`.
  void add_functions(const std::string& name, int64_t number) {
    state_.add(
        name,
        [this, number] {
          given_.clear();
          ask(Request::kSave, number);
          return std::exchange(given_, {});
        },
        [this, number](const ElasticState::Tensors& tensors) {
          given_ = tensors;
          ask(Request::kLoad, number);
          given_.clear();
        });
  }

  // ElasticGroup::run. `answer`: the address of an AnswerFunction. Besides its errors, RuntimeError if the program has
  // failed.
  void run(int64_t answer) {
    answer_ = reinterpret_cast<AnswerFunction>(answer);  // NOLINT(performance-no-int-to-ptr)
    elastic_.run(
        state_, [this](const ProcessGroupPtr& group) { return MadeObject(*this, group); },
        [](MadeObject& object, int64_t step) { return object.take_step(step); });
  }

  int64_t recoveries() const { return elastic_.recoveries(); }

  // For Python, while it answers.

  ProcessGroupPtr group() const { return group_; }
  // Another group of these ranks, or some of them, by Gloo: its waits for a lost machine end as those of group().
  void watch(const ProcessGroupPtr& other) const {
    if (group_ != nullptr) GroupWatch::end_together(group_, other);
  }
  void give(const StateDict& tensors) { given_ = from_dict(tensors); }
  StateDict given() const { return to_dict_without_copies(given_); }
  // FormerRanks: the number of former ranks, the states of this rank's, and of the first one.
  std::tuple<int64_t, std::vector<StateDict>, StateDict> hook_states() const {
    std::vector<StateDict> states;
    for (const hooks::HookState& state : hooks_.states) states.push_back(to_dict_without_copies(state));
    return {hooks_.world_size, states, to_dict_without_copies(hooks_.first)};
  }
  // ElasticRecovery.
  std::tuple<int64_t, std::vector<int64_t>, std::optional<double>> recovery() const {
    return {recovery_.step, recovery_.lost_ranks, recovery_.seconds};
  }
  void fail(const std::string& error) { error_ = error; }

 private:
  // The object that Python has made for a group, with the functions of a DistributedDataParallel.
  class MadeObject {
   public:
    MadeObject(ElasticGroupClass& owner, const ProcessGroupPtr& group) : owner_(owner) {
      owner_.group_ = group;
      try {
        owner_.ask_in_group(Request::kMake, "making what the steps use");
      } catch (...) {
        owner_.leave();
        throw;
      }
    }
    ~MadeObject() { owner_.leave(); }
    MadeObject(const MadeObject&) = delete;
    MadeObject& operator=(const MadeObject&) = delete;

    bool take_step(int64_t step) { return owner_.ask(Request::kStep, step); }
    bool buckets_are_settled() const { return owner_.ask(Request::kAreSettled); }
    void sync_buffers() { owner_.ask_in_group(Request::kSyncBuffers, "the broadcast of buffers"); }
    ReducerState state() const {
      owner_.given_.clear();
      owner_.ask_in_group(Request::kSaveHooks, "the hooks' state");
      const hooks::HookState own = std::exchange(owner_.given_, {});
      return {.buckets = {},  // They are a part of the state, because `make` needs them.
              .reductions = 0,
              .hook = {.world_size = owner_.group_->getSize(), .states = {own}, .first = own}};
    }
    void load_state(const ReducerState& saved) {
      owner_.hooks_ = saved.hook;
      owner_.ask_in_group(Request::kLoadHooks, "loading the hooks' state");
      owner_.hooks_ = {};
    }

   private:
    ElasticGroupClass& owner_;
  };

  ElasticOptions options_of(const OptionDict& given) {
    ElasticOptions options;
    options.group.group_name = "narrowcast.ElasticGroup";  // PyTorch's own group of these ranks is "0".
    for_each_option(given, [&](const std::string& name, const hooks::OptionValue& value) {
      if (name == "timeout_seconds") {
        options.group.timeout = parse_milliseconds(name, value);
      } else if (name == kSilence) {
        options.group.silence = parse_milliseconds(name, value);
      } else if (name == "first_step") {
        hooks::read_option(name, value, options.first_step);
      } else {
        TORCH_CHECK_VALUE(name == "copies_state", "unknown option '", name, "'");
        hooks::read_option(name, value, options.copies_state);
      }
    });
    options.on_recovery = [this](const ElasticRecovery& recovery) {
      recovery_ = recovery;
      ask(Request::kRecovered);
    };
    return options;
  }

  // Throws nothing: Python keeps an error of dropping, and answers kFailed from then on.
  void leave() {
    answer_(static_cast<int64_t>(Request::kDrop), 0);
    group_ = nullptr;
  }

  bool ask(Request request, int64_t number = 0) {
    const auto answer = static_cast<Answer>(answer_(static_cast<int64_t>(request), number));
    TORCH_CHECK_WITH(DistBackendError, answer != Answer::kLost, error_);
    TORCH_CHECK_VALUE(answer != Answer::kDiffers, error_);
    if (answer != Answer::kNo && answer != Answer::kYes) throw ProgramError();
    return answer == Answer::kYes;
  }

  // The same for requests whose answers may wait for other ranks. ElasticGroup does it for steps.
  void ask_in_group(Request request, const std::string& step) {
    with_network_errors(group_->getRank(), step, [&] { ask(request); });
  }

  ElasticState state_;
  ElasticGroup elastic_;
  AnswerFunction answer_ = nullptr;
  ProcessGroupPtr group_;  // null between groups
  ElasticState::Tensors given_;
  hooks::FormerRanks hooks_;
  ElasticRecovery recovery_;
  std::string error_;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(narrowcast, library) {
  library.class_<ElasticGroupClass>("ElasticGroup")
      .def(torch::init<const OptionDict&>())
      .def("add_tensor", &ElasticGroupClass::add_tensor)
      .def("add_functions", &ElasticGroupClass::add_functions)
      .def("run", &ElasticGroupClass::run)
      .def("recoveries", &ElasticGroupClass::recoveries)
      .def("group", &ElasticGroupClass::group)
      .def("watch", &ElasticGroupClass::watch)
      .def("give", &ElasticGroupClass::give)
      .def("given", &ElasticGroupClass::given)
      .def("hook_states", &ElasticGroupClass::hook_states)
      .def("recovery", &ElasticGroupClass::recovery)
      .def("fail", &ElasticGroupClass::fail);
}

}  // namespace narrowcast::classes
