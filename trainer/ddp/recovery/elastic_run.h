// One rank's part of ElasticGroup::run: its last point between steps, and the steps in one group after another.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/elastic_group.h>
#include "trainer/ddp/recovery/attempts.h"
#include "trainer/ddp/recovery/shared_state.h"
#include "trainer/ddp/recovery/stop_agreement.h"

namespace narrowcast::recovery {

class ElasticRun {
 public:
  using MakeSteps = std::function<ElasticSteps(const ProcessGroupPtr&)>;

  // The last moment between steps at which all values of the state are known.
  struct Point {
    int64_t step = 0;                          // the next one
    bool is_over = false;                      // there is no next one
    std::optional<ReducerState> reducer = {};  // of a DistributedDataParallel; its tensors are copies
    bool is_copied = false;                    // copies_ has the values of the state; else the state itself
  };

  // All arguments must outlive this object.
  ElasticRun(ElasticState& state, const ElasticOptions& options, const MakeSteps& make)
      : state_(state), options_(options), make_(make) {}

  // A collective: takes steps in the group until all ranks have taken the last one, or agree to take newcomers in.
  // `asked` returns kNewcomers if this rank knows of some, else 0. Null on all ranks: there are none.
  AttemptEnd take_steps(const ProcessGroupPtr& group, const Attempt& attempt, const StopAgreement::Asked& asked = {});

  // The same without recovery: nothing is copied, and other ranks' last step is not waited for.
  void take_steps_once(const ProcessGroupPtr& group) const;

  // The step after which this rank can go on; -1: none.
  int64_t step() const { return point_ ? point_->step : -1; }
  // How often the steps went on after a loss.
  int64_t recoveries() const { return recoveries_; }
  // Whether the last c10::ValueError was thrown because this process is new, and does not fit the others.
  bool is_misfit() const { return is_misfit_; }

  // Reads the point that another rank sent. Throws CorruptInputError for a text that no rank writes.
  static Point read_point(const SharedState& shared, int64_t world_size);

 private:
  // As in RankState.
  struct Values {
    TensorMap common;
    TensorMap own;
  };

  std::vector<int64_t> agree(const ProcessGroupPtr& group);
  ElasticSteps make_steps(const ProcessGroupPtr& group, const std::vector<int64_t>& new_ranks);
  bool take(int64_t step, const ElasticSteps& steps, const ProcessGroupPtr& group) const;
  AttemptEnd take_steps_from_point(const ProcessGroupPtr& group, const ElasticSteps& steps,
                                   const StopAgreement::Asked& asked);
  void remember(const Point& next, const ElasticSteps& steps);
  std::vector<NamedValue> description() const;
  void check_shapes() const;
  Values values_now() const;
  void copy_state();
  RankState rank_state() const;
  void restore(SharedState& shared, const ProcessGroupPtr& group);
  void clear_gradients() const;
  void check_fits(const RankState& received) const;
  void load(const Values& values);

  ElasticState& state_;
  const ElasticOptions& options_;
  const MakeSteps& make_;
  std::optional<Point> point_;  // empty until the first group has made its steps
  Values copies_;
  int64_t recoveries_ = 0;
  bool has_agreed_ = false;  // Standing::kHasAgreed
  bool is_misfit_ = false;
};

}  // namespace narrowcast::recovery
