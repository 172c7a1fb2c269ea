#include <c10/util/Exception.h>

#include <narrowcast/elastic_group.h>
#include "trainer/base/network/places.h"
#include "trainer/ddp/process_group/backends.h"
#include "trainer/ddp/process_group/change_watch.h"
#include "trainer/ddp/recovery/attempts.h"
#include "trainer/ddp/recovery/elastic_run.h"

namespace narrowcast {

void ElasticGroup::run_steps(ElasticState& state, const std::function<ElasticSteps(const ProcessGroupPtr&)>& make) {
  TORCH_CHECK_VALUE(options_.first_step >= 0, "first_step: must be at least 0, but is ", options_.first_step);
  recovery::ElasticRun run(state, options_, make);
  if (!env_.recovers_in_place || rendezvous::is_alone(env_) || options_.group.backend != kGlooBackend) {
    const ProcessGroupScope scope(env_, options_.group);
    scope.run([&] { run.take_steps_once(scope.group()); });
    return;
  }
  const auto attempt = [&](recovery::Attempt& attempt) {
    const ProcessGroupScope scope(attempt.env, options_.group);
    attempt.has_joined = true;
    const auto asked = [&] { return has_newcomers(scope) ? recovery::kNewcomers : 0; };
    return scope.run([&] {
      return run.take_steps(scope.group(), attempt,
                            env_.node > 0 ? recovery::StopAgreement::Asked(asked) : recovery::StopAgreement::Asked());
    });
  };
  recovery::work_until_nothing_is_lost(env_, {.attempt = attempt, .step = [&] { return run.step(); }});
  recoveries_ = run.recoveries();
}

}  // namespace narrowcast
