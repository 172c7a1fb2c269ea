// Exports a training to TensorBoard: an event file, which is a TFRecord file of its protocol buffers.
// docs/reference/metrics.md lists the tags.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ops/common/file_descriptor.h"
#include "trainer/train/reporting/progress.h"

namespace narrowcast::reporting {

// A TFRecord: the length of `data` (8 bytes), the length's masked CRC-32C (4), `data`, and its masked CRC-32C (4), all
// little-endian.
std::string tfrecord(std::string_view data);

// Makes the folder of event files if it does not exist. Throws c10::ValueError "tensorboard_dir: ..." naming the folder
// and the reason if it cannot be created, or no file can be written there.
void make_tensorboard_folder(const std::string& folder);

// The folder of a training's events, and which earlier events they replace.
struct TensorBoardOptions {
  std::string folder;
  int64_t steps_done = 0;  // before the training, if it resumes: later steps in the folder's other files become void
};

// Adds every number of a step's and an evaluation's line of metrics.jsonl, as the scalar EVENT/KEY. Each process writes
// a separate file: TensorBoard reads all files of a folder.
class TensorBoardEvents : public TrainingObserver {
 public:
  // Makes the file, `events.out.tfevents.SECONDS.HOST`. Throws c10::ValueError as make_tensorboard_folder does.
  explicit TensorBoardEvents(const TensorBoardOptions& options);

  // Throw OutputError naming the file if they cannot be written.
  void on_step(const StepReport& report) override;
  void on_evaluation(const EvaluationReport& report) override;

 private:
  void write(const std::string& event);

  std::string path_;
  FileDescriptor descriptor_;
};

}  // namespace narrowcast::reporting
