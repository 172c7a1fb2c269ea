#include "trainer/train/job/restarts.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/network_errors.h>
#include "hooks/table/post_local_sgd.h"
#include "trainer/base/network/places.h"
#include "trainer/ddp/process_group/change_watch.h"
#include "trainer/ddp/process_group/first_failure.h"
#include "trainer/ddp/recovery/new_ranks.h"
#include "trainer/train/checkpoint/checkpoint_folder.h"
#include "trainer/train/job/training_job.h"
#include "trainer/train/options/plan_entries.h"

namespace narrowcast::job {
std::string run_of(const WorkerEnv& env) { return env.run_id == "none" ? "" : env.run_id; }

TrainJob as_restarted(TrainJob job, const WorkerEnv& env) {
  const std::string run = run_of(env);
  if (env.restart_count == 0 || run.empty()) {
    return job;
  }
  job.output.restarted_run = run;
  const std::string& folder = job.checkpoints.folder;
  job.checkpoints.resume = job.checkpoints.resume || (!folder.empty() && checkpoint::has_checkpoint_of(folder, run));
  return job;
}

TrainJob restarted_alike(const TrainJob& job, const JobContext& context, const ProcessGroupPtr& group) {
  TrainJob restarted = as_restarted(job, context.env);
  restarted.checkpoints.resume = from_rank_0(group, restarted.checkpoints.resume ? "resume" : "") == "resume";
  return restarted;
}

bool has_restarted(const TrainJob& job, const WorkerEnv& env) {
  return env.restart_count > 0 && job.checkpoints.resume;
}

bool recovers_in_place(const TrainJob& job, const WorkerEnv& env) {
  return env.recovers_in_place && !rendezvous::is_alone(env) && !job.verification.has_value();
}

void use_newcomers_of(const ProcessGroupScope& scope, InPlaceRecovery& recovery) {
  recovery.has_newcomers = [&scope] { return has_newcomers(scope); };
  recovery.keep_newcomers_out = [&scope] { keep_newcomers_out(scope); };
  recovery.let_ranks_divide = [&scope](int64_t number) { let_ranks_divide(scope, number); };
}

void use_possible_quorum(const AgreedJob& begun, TrainJob& job, nlohmann::json& plan) {
  if (!job.outer || !job.outer->quorum()) {
    return;
  }
  const int64_t groups = with_network_errors(begun.group->getRank(), "finding the ranks of each node", [&] {
    return hooks::find_local_groups(job.ddp.hook_options(begun.group)).nodes();
  });
  const int64_t wanted = *job.outer->quorum();
  if (wanted < groups || (wanted == groups && !job.outer->grace_seconds())) {
    return;
  }
  // A process that replaces another one was started again, and ranks that live on count their attempts.
  const bool was_started_before = begun.context.env.restart_count > 0;
  const std::vector<std::string> answers = all_gather_text(begun.group, was_started_before ? "yes" : "");
  if (std::ranges::find(answers, "yes") == answers.end()) {
    return;
  }
  job.outer->quorum(groups).grace_seconds(std::nullopt);
  plan["outer_quorum"] = groups;
  plan.erase("outer_grace_seconds");
  if (begun.context.env.rank == 0) {
    begun.context.progress << "warning: outer_quorum: is " << wanted << ", but "
                           << (groups == 1 ? std::string("there is one group, so it has no effect")
                                           : c10::str("there are ", groups, " groups, so outer steps wait for all"))
                           << " until another group joins" << std::endl;
  }
}

int64_t ranks_to_check(const TrainJob& job, const WorkerEnv& env) {
  const bool may_change = recovers_in_place(job, env) && env.node > 0 && !job.dry_run;
  TORCH_CHECK_VALUE(!may_change || job.training.shares.samples.empty(),
                    "shares: ", data::to_string(job.training.shares),
                    " is for a fixed number of ranks, but nodes may come and go; give auto or equal");
  const int64_t possible = may_change ? training::possible_ranks(job.training, env.world_size) : 0;
  return possible > 0 ? possible : env.world_size;
}

void check_plans(const AgreedJob& begun) {
  const std::vector<NamedValue> own = options::compared_values(begun.plan);
  InPlaceRecovery* const recovery = begun.recovery;
  if (recovery == nullptr) {
    return check_equal_on_all_ranks(begun.group, own);
  }
  const auto standing = recovery->has_agreed ? recovery::Standing::kHasAgreed : recovery::Standing::kNew;
  const std::string misfit = recovery::check_new_ranks(begun.group, standing, "plan", own).misfit;
  TORCH_CHECK_VALUE(misfit.empty(), misfit);
  recovery->has_agreed = true;
}

bool can_take_in_newcomers(const AgreedJob& agreed) {
  const bool has_equal_states = !agreed.job.outer.has_value() && keeps_replicas_equal(agreed.job);
  return has_equal_states || !agreed.job.checkpoints.folder.empty();
}

void recover_from_memory(const AgreedJob& begun) {
  InPlaceRecovery& recovery = *begun.recovery;
  recovery.why_nothing.clear();
  recovery.recovered = training::share_states(begun.group, recovery.surviving, &recovery.why_nothing);
  if (recovery.recovered.has_value()) {
    return;
  }
  if (recovery.interrupted_at.has_value()) {
    recovery.surviving.reset();
    recovery.make_inputs();  // The training has changed the model.
  }
  if (begun.context.env.rank == 0 && !recovery.why_nothing.empty()) {
    begun.context.progress << "cannot recover from the ranks' memory: " << recovery.why_nothing
                           << "; goes back to the newest checkpoint" << std::endl;
  }
}

std::string why_memory_is_lost(const AgreedJob& agreed) {
  return agreed.recovery != nullptr ? agreed.recovery->why_nothing : "";
}

bool has_recovered(const AgreedJob& agreed) {
  return agreed.recovery != nullptr && agreed.recovery->recovered.has_value();
}

}  // namespace narrowcast::job
