// torch.classes.narrowcast.ParameterShards: shards of parameters that an optimizer of Python steps.
// python/narrowcast/sharded_optimizer.py is its only user.
//
//   shards = torch.classes.narrowcast.ParameterShards(parameters, groups, options, values, group.group_name, None)
//   step(shards.own_pieces()); shards.exchange(None)
//
// With a CommHook in the place of None, the parameters are sharded over all ranks.
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/custom_class.h>
#include <torch/library.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/wire_format.h>
#include "hooks/row/option_values.h"
#include "ops/comm/groups/agree.h"
#include "ops/comm/groups/group.h"
#include "python/classes/dictionaries.h"
#include "python/classes/shards_averager.h"
#include "python/classes/silence.h"
#include "trainer/ddp/process_group/group_watch.h"
#include "trainer/ddp/sharding/parameter_shards.h"

namespace narrowcast::classes {
namespace {

using sharding::ParameterShards;
using ValueDict = c10::Dict<std::string, std::string>;

// The arguments of a rank, which Python has not checked.
struct GivenShards {
  std::vector<at::Tensor> parameters;
  std::vector<int64_t> groups;  // By parameter.
  OptionDict options;           // whole_parameters, node_size, parameter_format and silence_seconds.
  ValueDict values;             // ShardRequest::values
  c10::IValue hook;             // A CommHook, or None.
};

struct WatchedShards {
  c10::intrusive_ptr<torch::CustomClassHolder> hook;  // Null within nodes.
  std::unique_ptr<ParameterShards> shards;
  std::shared_ptr<GroupWatch> watch;
};

sharding::ShardRequest to_request(const GivenShards& given, std::optional<double>& silence) {
  sharding::ShardRequest request{.parameters = given.parameters};
  for_each_option(given.options, [&](const std::string& name, const hooks::OptionValue& value) {
    if (name == kSilence) {
      silence = parse_silence(value);
    } else if (name == "whole_parameters") {
      hooks::read_option(name, value, request.options.whole_parameters());
    } else if (name == "parameter_format") {
      std::optional<std::string> format;
      if (!std::holds_alternative<std::monostate>(value)) {
        hooks::read_option(name, value, format);
        request.options.parameter_format(parse_wire_format(*format));
      }
    } else {
      TORCH_CHECK_VALUE(name == "node_size", "unknown option '", name, "'");
      if (!std::holds_alternative<std::monostate>(value)) {
        hooks::read_option(name, value, request.options.node_size());
      }
    }
  });
  const bool over_all = !given.hook.isNone();
  const auto& format = request.options.parameter_format();
  TORCH_CHECK_VALUE(over_all || !format, "parameter_format: ", *format, " has no effect without a hook");
  TORCH_CHECK_VALUE(!over_all || !request.options.node_size(), "node_size: ", *request.options.node_size(),
                    " has no effect with a hook, whose nodes count");
  TORCH_CHECK_VALUE(given.groups.size() == given.parameters.size(), "there are ", given.groups.size(), " groups for ",
                    given.parameters.size(), " parameters");
  request.groups.assign(given.groups.begin(), given.groups.end());
  request.values.push_back({"parameter_format", format ? c10::str(*format) : "not set"});
  for (const auto& value : given.values) request.values.push_back({value.key(), value.value()});
  return request;
}

// Torchbind takes no class of another file as an argument, so the hook comes as any object.
c10::intrusive_ptr<torch::CustomClassHolder> holder_of(const c10::IValue& hook) {
  TORCH_CHECK_TYPE(hook.isObject(), "hook: must be a CommHook, but is ", hook.tagKind());
  return hook.toObject()->getSlot(0).toCapsule();
}

ShardsAverager& averager_of(const c10::intrusive_ptr<torch::CustomClassHolder>& holder) {
  auto* const averager = dynamic_cast<ShardsAverager*>(holder.get());
  TORCH_CHECK_TYPE(averager != nullptr, "hook: must be a CommHook");
  return *averager;
}

WatchedShards make_shards(const GivenShards& given, const ProcessGroupPtr& group) {
  std::chrono::milliseconds silence{0};
  WatchedShards result;
  result.shards = std::make_unique<ParameterShards>(group, [&] {
    std::optional<double> seconds;
    auto request = to_request(given, seconds);
    silence = checked_silence(seconds, group, c10::DeviceType::CPU);
    if (!given.hook.isNone()) {
      result.hook = holder_of(given.hook);
      request.hook = averager_of(result.hook).sharding_hook();
    }
    return request;
  });
  result.watch = start_watch(group, silence);
  return result;
}

class ParameterShardsClass final : public torch::CustomClassHolder {
 public:
  // ParameterShards's constructor and start_watch, a collective. An error of one rank's arguments is an error on all.
  ParameterShardsClass(std::vector<at::Tensor> parameters, std::vector<int64_t> groups, const OptionDict& options,
                       const ValueDict& values, const std::string& group_name, c10::IValue hook)
      : group_(collectives::find_group(group_name)),
        own_(make_shards({std::move(parameters), std::move(groups), options, values, std::move(hook)}, group_)) {}

  // A forked child has no threads, see CommHookClass.
  ~ParameterShardsClass() override {
    if (getpid() != process_) {
      (void)std::make_unique<WatchedShards>(std::move(own_)).release();
    }
  }

  std::vector<at::Tensor> own_pieces() const { return shards().own_pieces(); }
  std::vector<int64_t> ranks() const { return shards().ranks(); }

  // By local rank: the parameter, the beginning and the number of elements of each piece, one after the other.
  std::vector<std::vector<int64_t>> pieces() const {
    std::vector<std::vector<int64_t>> pieces;
    for (const sharding::Shard& shard : shards().shards()) {
      std::vector<int64_t>& numbers = pieces.emplace_back();
      for (const sharding::Piece& piece : shard) {
        numbers.insert(numbers.end(), {static_cast<int64_t>(piece.parameter), piece.begin, piece.numel});
      }
    }
    return pieces;
  }

  bool has_masters() const { return shards().has_masters(); }

  // ParameterShards::follow with the hook's last buckets. A collective. Does nothing before the first averaged pass.
  bool follow() {
    return with_watch(own_.watch, [&] {
      ParameterShards& own = shards();
      const auto buckets = averager_of(own_.hook).last_buckets();
      return !buckets.empty() && own.follow(buckets);
    });
  }
  void forget_masters() { shards().forget_masters(); }

  // The error of this rank's step, if it failed.
  void exchange(const std::optional<std::string>& failure) {
    with_watch(own_.watch,
               [&] { shards().exchange(failure ? std::make_exception_ptr(std::runtime_error(*failure)) : nullptr); });
  }

  void gather(const std::vector<at::Tensor>& own, const std::vector<int64_t>& numels, int64_t largest,
              const std::vector<std::vector<at::Tensor>>& wanted) {
    with_watch(own_.watch, [&] { shards().gather(own, numels, largest, wanted); });
  }

  // A collective of the whole group. Without errors it returns the texts of all ranks. Throws the `error` of any rank,
  // in the place of options, on all ranks.
  std::vector<std::string> agree(const std::string& call, const OptionDict& error, const std::string& text) {
    const auto check = [&] { for_each_option(error, [](const auto& /*name*/, const auto& /*value*/) {}); };
    return with_watch(own_.watch, [&] {
      (void)shards();
      collectives::agree(group_, {.call = call, .refusal = collectives::refusal_of(check)});
      return all_gather_text(group_, text);
    });
  }

  // Python must call it, as CommHook.close.
  void close() {
    own_.shards.reset();
    own_.hook.reset();
    own_.watch.reset();
  }

 private:
  ParameterShards& shards() const {
    TORCH_CHECK_VALUE(own_.shards, "the optimizer is closed");
    return *own_.shards;
  }

  const pid_t process_ = getpid();
  const ProcessGroupPtr group_;
  WatchedShards own_;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(narrowcast, library) {
  library.class_<ParameterShardsClass>("ParameterShards")
      .def(torch::init<std::vector<at::Tensor>, std::vector<int64_t>, const OptionDict&, const ValueDict&,
                       const std::string&, c10::IValue>())
      .def("own_pieces", &ParameterShardsClass::own_pieces)
      .def("ranks", &ParameterShardsClass::ranks)
      .def("pieces", &ParameterShardsClass::pieces)
      .def("has_masters", &ParameterShardsClass::has_masters)
      .def("follow", &ParameterShardsClass::follow)
      .def("forget_masters", &ParameterShardsClass::forget_masters)
      .def("exchange", &ParameterShardsClass::exchange)
      .def("gather", &ParameterShardsClass::gather)
      .def("agree", &ParameterShardsClass::agree)
      .def("close", &ParameterShardsClass::close);
}

}  // namespace narrowcast::classes
