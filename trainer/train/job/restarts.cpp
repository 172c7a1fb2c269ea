#include "trainer/train/job/restarts.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include <narrowcast/consensus.h>
#include <narrowcast/errors.h>
#include "ops/common/text.h"
#include "trainer/base/files/json.h"
#include "trainer/base/network/places.h"
#include "trainer/ddp/process_group/change_watch.h"
#include "trainer/ddp/process_group/first_failure.h"
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

bool recovers_in_place(const TrainJob& job, const WorkerEnv& env) {
  return env.recovers_in_place && !rendezvous::is_alone(env) && !job.verification.has_value();
}

void use_newcomers_of(const ProcessGroupScope& scope, InPlaceRecovery& recovery) {
  recovery.has_newcomers = [&scope] { return has_newcomers(scope); };
  recovery.keep_newcomers_out = [&scope] { keep_newcomers_out(scope); };
  recovery.let_ranks_divide = [&scope](int64_t number) { let_ranks_divide(scope, number); };
}

int64_t ranks_to_check(const TrainJob& job, const WorkerEnv& env) {
  const bool may_change = recovers_in_place(job, env) && env.node > 0 && !job.dry_run;
  const int64_t possible = may_change ? training::possible_ranks(job.training, env.world_size) : 0;
  return possible > 0 ? possible : env.world_size;
}

namespace {

// The first value in which a rank differs from one that has worked before. Empty if there is none.
std::string difference_from(const std::vector<NamedValue>& former, const std::vector<NamedValue>& own) {
  for (const std::vector<NamedValue>* const values : {&former, &own}) {
    for (const NamedValue& value : *values) {
      const auto has_it = [&](const NamedValue& other) { return other.name == value.name; };
      const auto before = std::ranges::find_if(former, has_it);
      const auto now = std::ranges::find_if(own, has_it);
      if (before == former.end() || now == own.end() || before->value != now->value) {
        return c10::str(value.name, ": this new process has ", now == own.end() ? "none" : in_quotes(now->value),
                        ", the ranks of the job have ", before == former.end() ? "none" : in_quotes(before->value));
      }
    }
  }
  return "";
}

std::string to_text(const std::vector<NamedValue>& values) {
  nlohmann::json list = nlohmann::json::array();
  for (const NamedValue& value : values) list.push_back({value.name, value.value});
  return list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::vector<NamedValue> parse_values(const std::string& text, int64_t rank) {
  const std::string source = c10::str("the plan of rank ", rank);
  std::vector<NamedValue> values;
  try {
    for (const nlohmann::json& pair : files::parse_json(text, source)) {
      values.push_back({pair.at(0).get<std::string>(), pair.at(1).get<std::string>()});
    }
  } catch (const nlohmann::json::exception& error) {
    NARROWCAST_CHECK_INPUT(false, source, ": ", files::problem_with(error));
  }
  return values;
}

}  // namespace

void check_plans(const AgreedJob& begun) {
  const std::vector<NamedValue> own = options::compared_values(begun.plan);
  InPlaceRecovery* const recovery = begun.recovery;
  if (recovery == nullptr) {
    return check_equal_on_all_ranks(begun.group, own);
  }
  const std::vector<std::string> have_agreed = all_gather_text(begun.group, recovery->has_agreed ? "yes" : "");
  const auto former = std::ranges::find(have_agreed, "yes") - have_agreed.begin();
  if (former == std::ssize(have_agreed)) {
    check_equal_on_all_ranks(begun.group, own);
    recovery->has_agreed = true;
    return;
  }
  const std::vector<std::string> texts = all_gather_text(begun.group, to_text(own));
  const std::string& wanted = texts[static_cast<size_t>(former)];
  if (!recovery->has_agreed) {
    const std::string difference = difference_from(parse_values(wanted, former), own);
    TORCH_CHECK_VALUE(difference.empty(), difference);
  }
  for (int64_t rank = 0; rank < std::ssize(texts); ++rank) {
    TORCH_CHECK_WITH(DistBackendError, texts[static_cast<size_t>(rank)] == wanted, "rank ", begun.group->getRank(),
                     ": rank ", rank, " is new, and has another plan");
  }
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
