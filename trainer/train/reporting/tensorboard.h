// A training for TensorBoard: an event file, which is a TFRecord file of its protocol buffers. docs/training.md lists
// the tags.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ops/common/file_descriptor.h"
#include "trainer/train/reporting/progress.h"

namespace narrowcast::reporting {

// A TFRecord: the length of `data` as 8 bytes, their masked CRC-32C as 4, `data`, and its own as 4, all little-endian.
std::string tfrecord(std::string_view data);

// Makes the folder of event files, if it is not there. Throws c10::ValueError "tensorboard_dir: ..." naming the folder
// and the reason if it cannot be made, or no file can be written there.
void make_tensorboard_folder(const std::string& folder);

// Where the events of a training go, and which of earlier ones they replace.
struct TensorBoardOptions {
  std::string folder;
  int64_t steps_done =
      0;  // before the training, as it resumes: what the folder's other files tell of later ones is void
};

// Adds every number of a step's and an evaluation's line of metrics.jsonl, as the scalar EVENT/KEY. A file of its own
// in each process: TensorBoard reads all of a folder.
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
