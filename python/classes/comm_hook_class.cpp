// torch.classes.narrowcast.CommHook: a hook of the table (<narrowcast/hooks.h>) for TorchScript and Python.
//
//   hook = torch.classes.narrowcast.CommHook("int8", {"error_feedback": True}, group.group_name)
//   future = hook.run(bucket.buffer(), bucket.index(), bucket.is_last(), bucket.parameters())
//
// Methods run without Python's global lock (GIL), and the engine's thread completes futures without it.
#include <ATen/core/builtin_function.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>
#include <torch/custom_class.h>
#include <torch/library.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <utility>
#include <vector>

#include <narrowcast/hooks.h>
#include "hooks/row/bucket.h"
#include "hooks/row/execution.h"
#include "hooks/table/hook_table.h"
#include "ops/comm/groups/group.h"
#include "python/classes/dictionaries.h"
#include "python/classes/object_guard.h"
#include "python/classes/shards_averager.h"
#include "python/classes/silence.h"
#include "trainer/ddp/process_group/group_watch.h"

namespace narrowcast::classes {
namespace {

// The option that names HookOptions::device: "cpu" or "cuda".
constexpr const char* kDevice = "device";

c10::DeviceType parse_device(const hooks::OptionValue& value) {
  const std::string text = hooks::text_of(value);
  TORCH_CHECK_VALUE(text == "cpu" || text == "cuda", kDevice, ": must be \"cpu\" or \"cuda\", but is \"", text, "\"");
  return text == "cpu" ? c10::DeviceType::CPU : c10::DeviceType::CUDA;
}

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

struct HookClassOptions {
  hooks::HookOptions hook = {};
  std::chrono::milliseconds silence{0};
};

// c10::ValueError and c10::TypeError name what is wrong. A group for CPU and CUDA tensors needs the device.
HookClassOptions to_hook_class_options(const OptionDict& given, const Group& group) {
  hooks::HookOptions options{.process_group = group};
  std::optional<double> silence;
  for_each_option(given, [&](const std::string& name, const hooks::OptionValue& value) {
    if (name == kSilence) {
      silence = parse_silence(value);
    } else if (name != kDevice) {
      check_known(name, hooks::named_options(options), {kDevice, kSilence});
      hooks::set_option(options, name, value);
    } else if (!std::holds_alternative<std::monostate>(value)) {
      options.device = parse_device(value);
    }
  });
  const bool moves_both = collectives::moves_cpu_tensors(group) && collectives::moves_tensors_on(at::kCUDA, group);
  TORCH_CHECK_VALUE(options.device || !moves_both, kDevice, ": must be \"cpu\" or \"cuda\", because group \"",
                    group->getGroupName(), "\" moves tensors on both");
  const auto device = hooks::averages_on_gpus(options) ? c10::DeviceType::CUDA : c10::DeviceType::CPU;
  return {options, checked_silence(silence, group, device)};
}

// Its index among the buckets of a backward pass.
struct BucketPlace {
  int64_t index;
  bool is_last;
};

// The gradients of a DistributedDataParallel's bucket lie one behind the other, in the order of its parameters.
// c10::ValueError for a negative index, or if the parameters have more or fewer numbers than the buffer.
c10d::GradBucket make_bucket(const at::Tensor& buffer, const BucketPlace& place, std::vector<at::Tensor> parameters) {
  TORCH_CHECK_VALUE(place.index >= 0, "index: must be at least 0, but is ", place.index);
  std::vector<size_t> offsets;
  std::vector<size_t> lengths;
  std::vector<c10::IntArrayRef> sizes;  // They refer to the parameters, which the bucket keeps.
  int64_t end = 0;
  int64_t numbers = 0;
  for (const at::Tensor& parameter : parameters) {
    offsets.push_back(static_cast<size_t>(end));
    lengths.push_back(static_cast<size_t>(parameter.numel()));
    sizes.push_back(parameter.sizes());
    end += parameter.numel();
    numbers += hooks::numbers_in(parameter);
  }
  TORCH_CHECK_VALUE(parameters.empty() || numbers == buffer.numel(), "bucket ", place.index, " has ", buffer.numel(),
                    " numbers, but its parameters have ", numbers);
  const auto number = static_cast<size_t>(place.index);
  return c10d::GradBucket(number, number + (place.is_last ? 1 : 2), buffer, std::move(offsets), std::move(lengths),
                          std::move(sizes), std::move(parameters), std::nullopt);
}

// The parameters in each bucket of a backward pass, for an optimizer that has them. A hook may last longer than the
// model, so it does not keep them alive.
class BucketsOfPass {
 public:
  // The first bucket of a pass comes after the last one. In the first pass of a static graph DistributedDataParallel
  // gives all buckets the number of the first one, but no parameter comes twice.
  void add(const c10d::GradBucket& bucket) {
    const std::vector<at::Tensor> parameters = bucket.getParameters();
    const bool begins =
        bucket.getIndex() == 0 && (buckets_.empty() || parameters.empty() || has_ended_ ||
                                   buckets_[0][0]._unsafe_get_target() == parameters[0].unsafeGetTensorImpl());
    if (begins) buckets_.clear();
    has_ended_ = bucket.isLast();
    if (has_ended_) ++passes_;
    if (!parameters.empty()) buckets_.push_back(hooks::weak_references(parameters));
  }

  // The parameters of the last pass; empty before one, and once a parameter is gone.
  std::vector<std::vector<at::Tensor>> parameters() const {
    std::vector<std::vector<at::Tensor>> result;
    for (const hooks::WeakParameters& bucket : buckets_) {
      std::vector<at::Tensor>& locked = result.emplace_back();
      for (const hooks::WeakParameter& parameter : bucket) {
        auto impl = parameter.lock();
        if (!impl.defined()) return {};
        locked.emplace_back(std::move(impl));
      }
    }
    return result;
  }

  // Number of backward passes whose last bucket has come. The first pass of a static graph has no last bucket.
  int64_t passes() const { return passes_; }

 private:
  std::vector<hooks::WeakParameters> buckets_;
  bool has_ended_ = false;
  int64_t passes_ = 0;
};

class CommHookClass final : public ShardsAverager {
 public:
  // create_comm_hook and start_watch, a collective. `options`: by the names of hooks::named_options, "device" and
  // "silence_seconds". `group_name`: of a registered group. c10::ValueError and c10::TypeError name what is wrong;
  // "none" is not a hook.
  CommHookClass(const std::string& name, const OptionDict& options, const std::string& group_name)
      : CommHookClass(name, options, collectives::find_group(group_name)) {}

  CommHookClass(const std::string& name, const OptionDict& given, const Group& group) {
    HookClassOptions options;
    hook_ = hooks::create_comm_hook(name, group, [&] {
      options = to_hook_class_options(given, group);
      return options.hook;
    });
    TORCH_CHECK_VALUE(hook_, "hook: '", name,
                      "' is not a hook: register no hook to average as DistributedDataParallel does");
    wire_ = options.hook.wire;
    watch_ = start_watch(group, options.silence);
  }

  // A forked child has no threads of the engine and the watch, which their destructors would wait for.
  ~CommHookClass() override {
    if (getpid() != process_) {
      (void)hook_.release();
      (void)std::make_unique<std::shared_ptr<GroupWatch>>(std::move(watch_)).release();
    }
  }

  // CommHook::runHook: a future of the averaged bucket, which is `buffer`. `parameters`: whose gradients the bucket
  // holds, in its order; may be empty for hooks that keep nothing per parameter.
  c10::IValue run(const at::Tensor& buffer, int64_t index, bool is_last, std::vector<at::Tensor> parameters) {
    c10d::GradBucket bucket = remembered(make_bucket(buffer, {index, is_last}, std::move(parameters)));
    const auto give_value = [watch = weak_watch()](Future& done) {
      throw_error_of(done, watch);
      return std::make_pair(done.value(), done.storages());
    };
    const auto future = hook().runHook(bucket);
    return future->then(give_value, future->elementType());
  }

  // The same for Python's DistributedDataParallel, which takes only a future of a Python object. `result` is that
  // object: the bucket's buffer. Nothing of Python runs when the exchange ends. The thread that ends it, of the engine
  // or of Gloo, may also be the last to release what the exchange uses, while a thread with the GIL waits for its end.
  // So it gets the buffer's data as a tensor that no object of Python belongs to, and a guarded object. An alias would
  // not do: it is a view, and releases the buffer itself with its autograd metadata. A sparse bucket is passed itself,
  // because its exchange gives it other memory. Releasing it may take the GIL, as with every hook of PyTorch.
  c10::IValue run_for_reducer(const at::Tensor& buffer, const c10::IValue& result, const BucketPlace& place,
                              std::vector<at::Tensor> parameters) {
    c10d::GradBucket bucket =
        remembered(make_bucket(buffer.is_sparse() ? buffer : buffer.tensor_data(), place, std::move(parameters)));
    // A value of a Python object has no storages that a future could find, so it gets those of the tensor.
    const auto give_object = [result = guarded_object(result), watch = weak_watch()](Future& done) {
      throw_error_of(done, watch);
      return std::make_pair(result, done.storages());
    };
    return hook().runHook(bucket)->then(give_object, c10::PyObjectType::get());
  }

  std::string name() const { return std::string(hook().name()); }
  std::string nodes() const { return hook().nodes(); }
  std::string decision() const { return hook().decision(); }
  int64_t payload_bytes_sent() const { return hook().payload_bytes_sent(); }
  std::optional<double> compression() const { return hook().compression(); }
  std::optional<double> predicted_seconds(int64_t numel) const { return hook().predicted_seconds(numel); }
  bool keeps_replicas_equal() const { return hook().keeps_replicas_equal(); }
  void rescale_state(double factor) { hook().rescale_state(factor); }

  StateDict state(const std::vector<std::string>& names, const std::vector<at::Tensor>& parameters) const {
    return to_dict(hook().state(named(names, parameters)));
  }

  // FormerRanks: `states` of this rank's former ranks, `first` of former rank 0.
  void load_state(int64_t world_size, const std::vector<StateDict>& states, const StateDict& first,
                  const std::vector<std::string>& names, const std::vector<at::Tensor>& parameters) {
    hooks::FormerRanks saved{.world_size = world_size, .states = {}, .first = from_dict(first)};
    for (const StateDict& state : states) saved.states.push_back(from_dict(state));
    hook().load_state(saved, named(names, parameters));
  }

  sharding::ShardingHook sharding_hook() override {
    TORCH_CHECK_VALUE(hook().keeps_replicas_equal(),
                      "an optimizer can be sharded over all ranks only if they get equal gradients, but with hook ",
                      name(), " they do not");
    TORCH_CHECK_VALUE(use_.expired(), "another optimizer is already sharded over all ranks with this hook");
    const auto use = std::make_shared<int>();
    use_ = use;
    const auto average_shards = [this](std::optional<hooks::ShardRounding> rounding) {
      return hook_ ? hook_->average_shards(rounding) : std::vector<int64_t>();
    };
    return {name(), wire_, average_shards, use};
  }

  std::vector<std::vector<at::Tensor>> last_buckets() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return pass_.parameters();
  }

  int64_t passes() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return pass_.passes();
  }

  bool has_averaged() const { return !last_buckets().empty(); }

  // Destroys the hook, and its group's engine if no other hook uses it. Python must call it: the destructor of a
  // Python object holds the GIL, while the engine's thread may need it to release a tensor before it can be joined.
  void close() {
    hook_.reset();
    watch_.reset();
  }

 private:
  using Future = c10::ivalue::Future;

  hooks::CommHook& hook() const {
    TORCH_CHECK_VALUE(hook_, "the hook is closed");
    return *hook_;
  }

  std::weak_ptr<GroupWatch> weak_watch() const { return watch_; }

  c10d::GradBucket remembered(c10d::GradBucket bucket) {
    const std::lock_guard<std::mutex> lock(mutex_);
    pass_.add(bucket);
    return bucket;
  }

  static void throw_error_of(const Future& done, const std::weak_ptr<GroupWatch>& watch) {
    if (done.hasError()) with_watch(watch.lock(), [&] { std::rethrow_exception(done.exception_ptr()); });
  }

  const pid_t process_ = getpid();
  std::unique_ptr<hooks::CommHook> hook_;
  hooks::WireOptions wire_;
  std::weak_ptr<const void> use_;  // By an optimizer.
  std::shared_ptr<GroupWatch> watch_;
  mutable std::mutex mutex_;  // Of pass_.
  BucketsOfPass pass_;
};

// torch::class_ derives schemas from C++ types, and none of those is a Python object: this schema is made by hand.
class Registration : public torch::class_<CommHookClass> {
 public:
  Registration() : torch::class_<CommHookClass>("narrowcast", "CommHook") {}

  void def_run_for_reducer() {
    using c10::Argument;
    const std::string name = "run_for_reducer";
    c10::FunctionSchema schema(
        name, "",
        {Argument("self", classTypePtr), Argument("buffer", c10::TensorType::get()),
         Argument("result", c10::PyObjectType::get()), Argument("index", c10::IntType::get()),
         Argument("is_last", c10::BoolType::get()), Argument("parameters", c10::ListType::ofTensors())},
        {Argument("", c10::AnyType::get())});
    const auto call = [](torch::jit::Stack& stack) {
      std::vector<at::Tensor> parameters = torch::jit::pop(stack).toTensorVector();
      const bool is_last = torch::jit::pop(stack).toBool();
      const int64_t index = torch::jit::pop(stack).toInt();
      const c10::IValue result = torch::jit::pop(stack);
      const at::Tensor buffer = torch::jit::pop(stack).toTensor();
      const auto self = torch::jit::pop(stack).toCustomClass<CommHookClass>();
      torch::jit::push(stack, self->run_for_reducer(buffer, result, {index, is_last}, std::move(parameters)));
    };
    auto method = std::make_unique<torch::jit::BuiltinOpFunction>(c10::QualifiedName(qualClassName + "." + name),
                                                                  std::move(schema), call);
    classTypePtr->addMethod(method.get());
    torch::registerCustomClassMethod(std::move(method));
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(narrowcast, library) {
  library.def("comm_hook_names() -> str[]", [] { return hooks::comm_hook_names(); });
  Registration hook;
  hook.def_run_for_reducer();
  hook.def(torch::init<const std::string&, const OptionDict&, const std::string&>())
      .def("run", &CommHookClass::run)
      .def("name", &CommHookClass::name)
      .def("nodes", &CommHookClass::nodes)
      .def("decision", &CommHookClass::decision)
      .def("payload_bytes_sent", &CommHookClass::payload_bytes_sent)
      .def("compression", &CommHookClass::compression)
      .def("predicted_seconds", &CommHookClass::predicted_seconds)
      .def("keeps_replicas_equal", &CommHookClass::keeps_replicas_equal)
      .def("passes", &CommHookClass::passes)
      .def("has_averaged", &CommHookClass::has_averaged)
      .def("rescale_state", &CommHookClass::rescale_state)
      .def("state", &CommHookClass::state)
      .def("load_state", &CommHookClass::load_state)
      .def("close", &CommHookClass::close);
}

}  // namespace narrowcast::classes
