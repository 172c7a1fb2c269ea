#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <narrowcast/elastic_group.h>
#include "ops/common/error_message.h"
#include "ops/common/text.h"
#include "trainer/base/network/places.h"
#include "trainer/base/process/error_file.h"
#include "trainer/ddp/backends/gloo_backend.h"
#include "trainer/ddp/backends/group_backend.h"
#include "trainer/ddp/process_group/change_watch.h"
#include "trainer/ddp/recovery/attempts.h"
#include "trainer/ddp/recovery/elastic_run.h"
#include "trainer/ddp/rendezvous/heartbeats.h"

namespace narrowcast {
namespace {

// Waits for the launcher's store are cut into slices, and LibTorch prints two warnings for each. While this object
// lives, it prints none. With another level than its default (TORCH_CPP_LOG_LEVEL), nothing changes.
class WithoutWarnings {
 public:
  WithoutWarnings() {
    if (level_ == c10::GLOG_WARNING) FLAGS_caffe2_log_level = c10::GLOG_ERROR;
  }
  ~WithoutWarnings() { FLAGS_caffe2_log_level = level_; }
  WithoutWarnings(const WithoutWarnings&) = delete;
  WithoutWarnings& operator=(const WithoutWarnings&) = delete;

 private:
  const int level_ = FLAGS_caffe2_log_level;
};

// Ends this rank's waits for a silent rank that no launcher has replaced: they fail, with an error that names the rank.
// Thread-safe.
class SilenceGuard {
 public:
  // Whose connections end. Null: nothing ends.
  void set_group(ProcessGroupPtr group) {
    const std::lock_guard<std::mutex> lock(mutex_);
    group_ = std::move(group);
  }
  void end_waits() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (group_ != nullptr) close_gloo_connections(*group_->getBackend(c10::DeviceType::CPU));
  }

 private:
  std::mutex mutex_;
  ProcessGroupPtr group_;
};

// The job's group until the end of a scope, with a guard if the program has none.
class GuardedScope {
 public:
  GuardedScope(const WorkerEnv& env, const ProcessGroupOptions& options) : scope_(env, guarded(options)) {
    guard_->set_group(scope_.group());
  }
  ~GuardedScope() { guard_->set_group(nullptr); }
  GuardedScope(const GuardedScope&) = delete;
  GuardedScope& operator=(const GuardedScope&) = delete;

  const ProcessGroupScope& operator*() const { return scope_; }
  const ProcessGroupScope* operator->() const { return &scope_; }

 private:
  ProcessGroupOptions guarded(ProcessGroupOptions options) const {
    if (options.backend == kGlooBackend && !options.on_silence) {
      options.on_silence = [guard = guard_](const std::string& /*why*/) { guard->end_waits(); };
    }
    return options;
  }

  const std::shared_ptr<SilenceGuard> guard_ =
      std::make_shared<SilenceGuard>();  // The watch's thread may outlive this.
  const ProcessGroupScope scope_;
};

// Tells the launcher that this process does not fit the others: it replaces no process, and they go on without its
// node.
void write_misfit(const WorkerEnv& env, const c10::Error& error) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  if (!env.error_file.empty()) {
    program::write_error_file(
        env.error_file,
        {.message = printable(first_line(error.what_without_backtrace())), .is_final = true, .is_misfit = true},
        std::chrono::duration_cast<std::chrono::seconds>(now).count());
  }
}

}  // namespace

void ElasticGroup::run_steps(ElasticState& state, const std::function<ElasticSteps(const ProcessGroupPtr&)>& make) {
  TORCH_CHECK_VALUE(options_.first_step >= 0, "first_step: must be at least 0, but is ", options_.first_step);
  const rendezvous::Heartbeats heartbeats(env_);
  recovery::ElasticRun run(state, options_, make);
  if (!env_.recovers_in_place || rendezvous::is_alone(env_)) {
    const GuardedScope scope(env_, options_.group);
    scope->run([&] { run.take_steps_once(scope->group()); });
    return;
  }
  // A step enqueues its changes of the state before the host can notice that a collective has failed.
  TORCH_CHECK_VALUE(options_.copies_state || options_.group.backend != kNcclBackend,
                    "copies_state: must be true with backend '", kNcclBackend, "'");
  const auto attempt = [&](recovery::Attempt& attempt) {
    const auto join = [&] {
      const WithoutWarnings quiet;
      return GuardedScope(attempt.env, options_.group);
    };
    const GuardedScope scope = join();
    attempt.has_joined = true;
    const auto asked = [&] { return has_newcomers(*scope) ? recovery::kNewcomers : 0; };
    return scope->run([&] {
      return run.take_steps(scope->group(), attempt,
                            env_.node > 0 ? recovery::StopAgreement::Asked(asked) : recovery::StopAgreement::Asked());
    });
  };
  try {
    recovery::work_until_nothing_is_lost(env_, {.attempt = attempt, .step = [&] { return run.step(); }});
  } catch (const c10::ValueError& error) {
    if (run.is_misfit()) write_misfit(env_, error);
    throw;
  }
  recoveries_ = run.recoveries();
}

}  // namespace narrowcast
