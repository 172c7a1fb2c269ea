// Training with few exchanges: ranks take steps of their own, and exchange parameters every so many of them.
//
// One class for periodic averaging, post-local SGD, local SGD, DiLoCo (arXiv 2311.08105) and Streaming DiLoCo (arXiv
// 2501.18512): they differ in OuterOptions only.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <narrowcast/comm_hook.h>
#include <narrowcast/export.h>
#include <narrowcast/outer_options.h>
#include <narrowcast/process_group.h>

namespace narrowcast {

// What one rank leaves, and resumes from: what is the same on all ranks, and its own.
//   replica: steps, exchanges, lost_exchanges, replicas_are_equal int64; after the warm-up reference float32
//   [elements],
//     with momentum momentum float32 [elements], and of an exchange that is under way its mean float32 [of the
//     fragment], fragment and joined_at int64
//   rank: the state of the exchange (CommHook::state), residuals too; of a fragment I they are "residual.fragment.I".
//     Of this rank alone where it is left, as ReducerState::hook
struct OuterState {
  hooks::HookState replica;
  hooks::FormerRanks rank;
  // For who resumes: whether ranks that were equal, as they average their gradients, may be others now
  // (CommHook::groups).
  bool groups_differ = false;
};

// Wraps an optimizer, whose step it takes:
//
//   OuterOptimizer outer(adamw, group, OuterOptions().sync_every(30).optimizer(OuterKind::kNesterov));
//   loss_of(model->forward(inputs), targets).backward();  // nothing is sent
//   outer.step();                                         // adamw's step; every 30th exchanges parameters
//   ...
//   outer.finish();                                       // all ranks have the outer parameters
//
// There is a reference x, float32, the same on all ranks: the outer parameters. With H = sync_every, P = fragments and
// tau = overlap_steps, fragment p = 0..P-1 is exchanged after (p + 1) H / P steps and every H further ones:
//
//   issued:  each rank takes x - its parameters as they are now; the mean over ranks, in the wire format, is a job of
//            the group's engine (on a GPU kernels on a stream of its own), beside which the rank goes on computing.
//   joined:  tau steps later it is waited for. All ranks have the same mean D, and take the same outer step (OuterKind)
//            from x with it. Then a rank's parameters become mix * own + (1 - mix) * x.
//
// A mean that is not finite is lost: x stays, and all ranks take the fragment from x again.
//
// Elements are independent of each other in all of this, so fragments are equal parts of the parameters one after the
// other, in the order of the optimizer's groups, and a border may lie within a parameter. What a rank has besides is
// its own: the optimizer's state (Adam's moments), buffers. All ranks make the same calls in the same order, from one
// thread each. Memory: 4 bytes per parameter for x, 4 with momentum, for a fragment 4 more, and with error feedback
// those of WireOptions::error_feedback, as if the parameters were gradients.
class NARROWCAST_EXPORT OuterOptimizer {
 public:
  // A collective. `inner`, which outlives this, has all parameters; those that require no gradient are left alone. They
  // are equal on all ranks, as DistributedDataParallel's constructor makes them, and stay on their device. Throws
  // c10::ValueError as OuterOptions::validate does; for a null group, no parameters, more fragments than elements,
  // parameters that are no float32, float16 or bfloat16, that are on several devices or have holes in memory; on all
  // ranks alike where options or parameters differ between them. c10::DistBackendError if a peer fails.
  OuterOptimizer(torch::optim::Optimizer& inner, ProcessGroupPtr group, const OuterOptions& options);
  // Waits for what is under way, unless an exception passes: the group goes on to be of use.
  ~OuterOptimizer();
  OuterOptimizer(const OuterOptimizer&) = delete;
  OuterOptimizer& operator=(const OuterOptimizer&) = delete;

  // A collective: a step of the wrapped optimizer, and what is due after it. c10::DistBackendError if a peer fails;
  // after the last step of the warm-up c10::ValueError on all ranks if their parameters are not equal.
  void step();

  // Makes the gradients of the wrapped optimizer's parameters undefined.
  void zero_grad() { inner_.zero_grad(); }

  // A collective: the same where this rank leaves the optimizer's step out, for instance for a gradient that is not
  // finite. Others may take theirs.
  void skip_step();

  // A collective: joins what is under way, and all ranks take the outer parameters. Steps that a rank has taken since a
  // fragment was issued last are lost in it: best after a multiple of sync_every steps since the warm-up.
  void finish();

  // Whether the next step is one of the warm-up: its gradients must be averaged over all ranks.
  bool is_warming_up() const;

  // Whether all ranks have the same parameters at present: in the warm-up, after finish, and with one fragment and no
  // mix right after an exchange is joined.
  bool replicas_are_equal() const { return replicas_are_equal_; }

  // While it lives, the parameters are those that finish would leave, for instance to be evaluated; then this rank's
  // own again. A collective: waits for what is under way, which is joined when it is due nevertheless. No step may be
  // taken meanwhile.
  class [[nodiscard]] OuterParameters {
   public:
    // Puts them in.
    explicit OuterParameters(OuterOptimizer& outer);
    ~OuterParameters();
    OuterParameters(const OuterParameters&) = delete;
    OuterParameters& operator=(const OuterParameters&) = delete;

   private:
    OuterOptimizer& outer_;
    std::vector<at::Tensor> own_;
  };

  // The reference, float32 [elements] on the parameters' device; it means nothing in the warm-up.
  const at::Tensor& reference() const { return reference_; }

  // A collective: what later steps depend on besides parameters and the wrapped optimizer. Waits for what is under way,
  // which is joined when it is due nevertheless: whether there was a checkpoint changes no bit.
  OuterState state();

  // A collective: resumes from such a state, before the first step, with the same options. In a world of the same size
  // and in the same groups a training gives the same bits if parameters and optimizer are as they were; in others this
  // gives all ranks the reference. Throws CorruptInputError naming what is missing or does not fit.
  void load_state(const OuterState& saved);

  // Elements of all parameters.
  int64_t elements() const { return elements_; }
  // Fragments issued so far, and those of which the mean was not finite. The same on all ranks.
  int64_t exchanges() const { return exchanges_; }
  int64_t lost_exchanges() const { return lost_exchanges_; }
  // Of those issued, fragments that have been joined: all, or all but one.
  int64_t joined_exchanges() const { return exchanges_ - (under_way_ ? 1 : 0); }
  // How old the news is that ranks have of each other: steps since what was joined last was issued. Nothing before.
  std::optional<int64_t> staleness() const;
  // Bytes that this rank has sent for them, see CommHook::payload_bytes_sent.
  int64_t payload_bytes_sent() const;
  // The options that it was made with.
  const OuterOptions& options() const { return options_; }

 private:
  // A part of a parameter, in its memory's order.
  struct Slice {
    at::Tensor parameter;
    int64_t begin = 0;
    int64_t numel = 0;
    at::Tensor memory() const;  // [numel]
  };
  struct Fragment {
    int64_t begin = 0;  // in the reference
    int64_t numel = 0;
    std::vector<Slice> slices = {};
  };
  // A fragment's, from issue to join.
  struct Exchange {
    int64_t fragment = 0;
    int64_t joined_at = 0;                                // after so many steps since the warm-up
    c10::intrusive_ptr<c10::ivalue::Future> future = {};  // null where the mean is there
    at::Tensor mean = {};                                 // once it is there
  };

  static std::vector<Fragment> cut(const std::vector<at::Tensor>& parameters, int64_t count);
  void compare_between_ranks() const;
  void count_step();
  void begin_rounds();
  void check_equal_parameters() const;
  void make_memory();
  void issue(int64_t fragment);
  at::Tensor wait_for_mean();
  void join();
  void take_outer_step(const Fragment& fragment, const at::Tensor& mean);
  void gather(const Fragment& fragment, const at::Tensor& flat) const;
  void scatter(const Fragment& fragment, double mix) const;
  void take_reference() const;
  void load_under_way(const hooks::HookState& replica);
  at::Tensor part(const at::Tensor& flat, const Fragment& fragment) const;

  torch::optim::Optimizer& inner_;
  const ProcessGroupPtr group_;
  const OuterOptions options_;
  const std::vector<at::Tensor> parameters_;
  const int64_t elements_;
  const std::vector<Fragment> fragments_;
  std::unique_ptr<hooks::CommHook> exchange_;
  std::vector<hooks::NamedParameter> names_;  // of the fragments, for the exchange's state
  at::Tensor reference_;
  at::Tensor momentum_;  // undefined without
  at::Tensor sent_;      // of the largest fragment
  std::optional<Exchange> under_way_;
  int64_t steps_ = 0;
  int64_t exchanges_ = 0;
  int64_t lost_exchanges_ = 0;
  bool replicas_are_equal_ = true;
};

}  // namespace narrowcast
