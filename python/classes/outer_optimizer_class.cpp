// torch.classes.narrowcast.OuterOptimizer: narrowcast::OuterOptimizer for TorchScript and Python, whose own optimizer
// takes the inner steps.
//
//   outer = torch.classes.narrowcast.OuterOptimizer(parameters, {"sync_every": 30}, group.group_name)
//   ...; optimizer.step(); outer.step()
#include <c10/util/Exception.h>
#include <torch/custom_class.h>
#include <torch/library.h>
#include <torch/optim/optimizer.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/hook_options.h>
#include <narrowcast/outer_optimizer.h>
#include "hooks/table/post_local_sgd.h"
#include "ops/comm/groups/group.h"
#include "python/classes/dictionaries.h"
#include "python/classes/silence.h"
#include "trainer/ddp/module/broadcast.h"
#include "trainer/ddp/outer/outer_arguments.h"
#include "trainer/ddp/process_group/group_watch.h"

namespace narrowcast::classes {
namespace {

struct NoOptions : torch::optim::OptimizerCloneableOptions<NoOptions> {};

// Holds parameters whose steps other code takes.
class ParametersOnly final : public torch::optim::Optimizer {
 public:
  ParametersOnly() : Optimizer(std::vector<torch::optim::OptimizerParamGroup>(), std::make_unique<NoOptions>()) {}

  // c10::Error for parameters that no optimizer takes, such as results of operations.
  void take(std::vector<at::Tensor> parameters) { add_param_group({std::move(parameters)}); }

  torch::Tensor step(LossClosure /*closure*/) override { return {}; }
};

constexpr const char* kInitSync = "init_sync";
constexpr const char* kFirstExchange = "first_exchange";  // OuterOptions::named does not have it.
constexpr const char* kSyncEvery = "sync_every";
constexpr const char* kLocalGroup = "local_group";

struct ClassOptions {
  OuterOptions outer = {};
  std::optional<double> silence = {};             // seconds; none: the default
  bool init_sync = true;                          // The parameters become rank 0's first.
  std::optional<hooks::LocalOptions> local = {};  // its group takes the same steps
};

// The ranks that average gradients in each step.
hooks::LocalOptions parse_group(const hooks::OptionValue& value) {
  hooks::HookOptions options;
  hooks::set_option(options, kLocalGroup, value);
  const std::optional<int64_t>& size = options.local.group_size;
  TORCH_CHECK_VALUE(!size || *size >= 1, kLocalGroup, ": must be at least 1, but is ", *size);
  return options.local;
}

std::string text_of_group(const std::optional<hooks::LocalOptions>& local) {
  if (!local) return "none";
  return local->group_size ? std::to_string(*local->group_size) : "node";
}

// A collective if the groups are the nodes.
std::vector<int64_t> groups_of(const ClassOptions& options, const ProcessGroupPtr& group) {
  if (!options.local) return {};
  return hooks::find_local_groups({.process_group = group, .local = *options.local}).node_of_rank();
}

ClassOptions to_class_options(const OptionDict& given) {
  ClassOptions options;
  bool has_steps = false;
  for_each_option(given, [&](const std::string& name, const hooks::OptionValue& value) {
    has_steps = has_steps || (name == kSyncEvery && !std::holds_alternative<std::monostate>(value));
    if (name == kSilence) {
      options.silence = parse_silence(value);
      return;
    }
    if (name == kLocalGroup) {
      options.local = parse_group(value);
      return;
    }
    if (name != kInitSync) {
      check_known(name, options.outer.named(), {kFirstExchange, kInitSync, kLocalGroup, kSilence});
      options.outer.set(name, value);
      return;
    }
    TORCH_CHECK_TYPE(std::holds_alternative<bool>(value), kInitSync, ": must be bool, but is ", hooks::text_of(value));
    options.init_sync = std::get<bool>(value);
  });
  TORCH_CHECK_VALUE(!has_steps || !options.outer.sync_seconds(), kSyncEvery, ": ", options.outer.sync_every(),
                    " has no effect with sync_seconds; leave it out");
  const bool have_own_steps = options.outer.sync_seconds() || options.outer.quorum();
  TORCH_CHECK_VALUE(!options.local || have_own_steps, kLocalGroup, ": ", text_of_group(options.local),
                    " has no effect without sync_seconds or outer_quorum");
  if (have_own_steps && !options.local) {
    options.local = hooks::LocalOptions();  // As post_local_sgd, which may average gradients of these ranks.
  }
  return options;
}

struct WatchedOptimizer {
  std::shared_ptr<GroupWatch> watch;
  std::unique_ptr<OuterOptimizer> outer;
};

// `inner`: without parameters; takes them. Broadcasts nothing unless all ranks' arguments are right.
WatchedOptimizer make_outer(ParametersOnly& inner, std::vector<at::Tensor> parameters, const OptionDict& given,
                            const ProcessGroupPtr& group) {
  ClassOptions options;
  std::chrono::milliseconds silence{0};
  agree_on_outer_options(inner, group, [&] {
    const auto device = parameters.empty() ? c10::DeviceType::CPU : parameters.front().device().type();
    inner.take(std::move(parameters));
    options = to_class_options(given);
    silence = checked_silence(options.silence, group, device);
    return options.outer;
  });
  check_equal_on_all_ranks(
      group, {{kInitSync, hooks::text_of(options.init_sync)}, {kLocalGroup, text_of_group(options.local)}});
  const std::vector<int64_t> groups = groups_of(options, group);
  if (!groups.empty()) check_quorum(options.outer, std::ranges::max(groups) + 1);
  if (options.init_sync) {
    broadcast_from_rank_0(group, outer_parameters_of(inner), "the broadcast of the first parameters");
  }
  auto outer = std::make_unique<OuterOptimizer>(inner, group, options.outer, groups);
  return {start_watch(group, silence), std::move(outer)};
}

class OuterOptimizerClass final : public torch::CustomClassHolder {
 public:
  // OuterOptimizer's constructor and start_watch, a collective. `options`: by the names of OuterOptions::named,
  // "first_exchange", "silence_seconds", "init_sync" and "local_group" (ClassOptions). An error of one rank's arguments
  // is an error on all.
  OuterOptimizerClass(std::vector<at::Tensor> parameters, const OptionDict& options, const std::string& group_name)
      : own_(make_outer(inner_, std::move(parameters), options, collectives::find_group(group_name))) {}

  // A forked child has no threads, see CommHookClass.
  ~OuterOptimizerClass() override {
    if (getpid() != process_) {
      (void)borrowed_.release();
      (void)std::make_unique<WatchedOptimizer>(std::move(own_)).release();
    }
  }

  // After this rank's optimizer has taken a step, or in its place. Collectives.
  void step() {
    check_own_parameters();
    with_watch(own_.watch, [&] { outer().step(); });
  }
  void skip_step() {
    check_own_parameters();
    with_watch(own_.watch, [&] { outer().skip_step(); });
  }
  void finish() {
    check_own_parameters();
    with_watch(own_.watch, [&] { outer().finish(); });
  }
  void end_round() {
    check_own_parameters();
    with_watch(own_.watch, [&] { outer().end_round(); });
  }
  void restart_clock() { outer().restart_clock(); }

  // OuterParameters. The first one is a collective.
  void take_outer_parameters() {
    check_own_parameters();
    with_watch(own_.watch, [&] { borrowed_ = std::make_unique<OuterOptimizer::OuterParameters>(outer()); });
  }
  void restore_own_parameters() {
    TORCH_CHECK_VALUE(borrowed_, "the model does not have the outer parameters");
    borrowed_.reset();
  }

  bool is_warming_up() const { return outer().is_warming_up(); }
  bool replicas_are_equal() const { return outer().replicas_are_equal(); }
  int64_t steps() const { return outer().steps(); }
  bool steps_are_common() const { return outer().steps_are_common(); }
  // The fewest and the most steps of a rank in the last round of sync_seconds; before its end, an empty list.
  std::vector<int64_t> last_round() const {
    const auto& round = outer().last_round();
    return round ? std::vector<int64_t>{round->fewest, round->most} : std::vector<int64_t>();
  }
  int64_t exchanges() const { return outer().exchanges(); }
  int64_t lost_exchanges() const { return outer().lost_exchanges(); }
  int64_t payload_bytes_sent() const { return outer().payload_bytes_sent(); }
  std::optional<int64_t> staleness() const { return outer().staleness(); }

  // OuterState's parts: `replica`, equal on all ranks, and the state of this rank. A collective.
  std::tuple<StateDict, StateDict> state() {
    OuterState state;
    with_watch(own_.watch, [&] { state = outer().state(); });
    return {to_dict(state.replica), to_dict(state.rank.own())};
  }

  // FormerRanks as in CommHook.load_state. A collective.
  void load_state(const StateDict& replica, int64_t world_size, const std::vector<StateDict>& states,
                  const StateDict& first) {
    OuterState saved{.replica = from_dict(replica), .rank = {.world_size = world_size, .states = {}, .first = {}}};
    saved.rank.first = from_dict(first);
    for (const StateDict& state : states) saved.rank.states.push_back(from_dict(state));
    outer().load_state(saved);
  }

  // Waits for the exchange that is under way. Python must call it, as CommHook.close.
  void close() {
    borrowed_.reset();
    own_.outer.reset();
    own_.watch.reset();
  }

 private:
  OuterOptimizer& outer() const {
    TORCH_CHECK_VALUE(own_.outer, "the outer optimizer is closed");
    return *own_.outer;
  }
  void check_own_parameters() const {
    TORCH_CHECK_VALUE(!borrowed_, "the model has the outer parameters: call restore_own_parameters first");
  }

  const pid_t process_ = getpid();
  ParametersOnly inner_;
  WatchedOptimizer own_;
  std::unique_ptr<OuterOptimizer::OuterParameters> borrowed_;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(narrowcast, library) {
  library.class_<OuterOptimizerClass>("OuterOptimizer")
      .def(torch::init<std::vector<at::Tensor>, const OptionDict&, const std::string&>())
      .def("step", &OuterOptimizerClass::step)
      .def("skip_step", &OuterOptimizerClass::skip_step)
      .def("finish", &OuterOptimizerClass::finish)
      .def("end_round", &OuterOptimizerClass::end_round)
      .def("restart_clock", &OuterOptimizerClass::restart_clock)
      .def("steps", &OuterOptimizerClass::steps)
      .def("steps_are_common", &OuterOptimizerClass::steps_are_common)
      .def("last_round", &OuterOptimizerClass::last_round)
      .def("take_outer_parameters", &OuterOptimizerClass::take_outer_parameters)
      .def("restore_own_parameters", &OuterOptimizerClass::restore_own_parameters)
      .def("is_warming_up", &OuterOptimizerClass::is_warming_up)
      .def("replicas_are_equal", &OuterOptimizerClass::replicas_are_equal)
      .def("exchanges", &OuterOptimizerClass::exchanges)
      .def("lost_exchanges", &OuterOptimizerClass::lost_exchanges)
      .def("payload_bytes_sent", &OuterOptimizerClass::payload_bytes_sent)
      .def("staleness", &OuterOptimizerClass::staleness)
      .def("state", &OuterOptimizerClass::state)
      .def("load_state", &OuterOptimizerClass::load_state)
      .def("close", &OuterOptimizerClass::close);
}

}  // namespace narrowcast::classes
