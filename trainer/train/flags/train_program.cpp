#include "trainer/train/flags/train_program.h"

#include "trainer/base/program/failure.h"
#include "trainer/train/files/file_io.h"
#include "trainer/train/flags/model_flags.h"
#include "trainer/train/reporting/report.h"

namespace narrowcast {
namespace {

// A page of trainings that others have left.
int compare(const Comparison& comparison, const WorkerEnv& env) {
  reporting::check_page_name(comparison.report);
  if (env.rank == 0) {
    files::check_replaceable("report", comparison.report);
    reporting::write_report(comparison.report, reporting::trainings_document(comparison.trainings));
  }
  return program::kSuccess;
}

}  // namespace

int run_train(const Given& given, const job::JobContext& context) {
  if (const auto comparison = read_comparison(given)) {
    return compare(*comparison, context.env);
  }
  if (const auto evaluation = read_evaluation_job(given)) {
    return inference::run_evaluation_job(*evaluation, context);
  }
  return job::run_job(read_train_job(given, context.env), context);
}

}  // namespace narrowcast
