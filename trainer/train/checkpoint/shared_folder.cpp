#include "trainer/train/checkpoint/shared_folder.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <system_error>

#include "trainer/base/files/open_file.h"
#include "trainer/ddp/process_group/first_failure.h"
#include "trainer/train/checkpoint/checkpoint_folder.h"
#include "trainer/train/files/file_io.h"

namespace narrowcast::checkpoint {
namespace {

constexpr const char* kProbeName = "/.shared-folder-probe";

// Not from LibTorch's generators, whose state is the training's.
std::string random_text() {
  std::random_device device;
  return std::to_string(device()) + "-" + std::to_string(device());
}

void make_ready(const std::string& folder, Existing existing) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  TORCH_CHECK_VALUE(!error, "cannot be made: ", error.message());
  remove_unfinished(folder);
  for (const int64_t step : checkpoint_steps(folder)) {
    TORCH_CHECK_VALUE(existing != Existing::kRefuse, holds_checkpoints(step));
    if (existing == Existing::kRemove) {
      remove_checkpoint(folder, step);
    }
  }
}

void write_probe(const std::string& folder, const std::string& text) {
  files::AtomicFile probe(folder + kProbeName);
  probe.write(text);
  probe.commit();
}

void check_probe(const std::string& folder, const std::string& text) {
  const bool is_there = ::access((folder + kProbeName).c_str(), R_OK) == 0;
  TORCH_CHECK_VALUE(is_there && files::read_file(folder + kProbeName) == text,
                    "does not hold what rank 0 wrote there: all nodes must share this folder");
}

}  // namespace

void prepare_folder(const ProcessGroupPtr& group, const std::string& folder, Existing existing) {
  const bool is_rank_0 = group->getRank() == 0;
  const std::string text = from_rank_0(group, random_text());
  std::string failure = first_failure(group, [&] {
    if (is_rank_0) {
      make_ready(folder, existing);
      write_probe(folder, text);
    }
  });
  if (failure.empty()) {
    failure = first_failure(group, [&] { check_probe(folder, text); });
  }
  if (is_rank_0) {
    std::error_code ignored;
    std::filesystem::remove(folder + kProbeName, ignored);
  }
  TORCH_CHECK_VALUE(failure.empty(), "checkpoint_dir ", folder, ": ", failure);
}

}  // namespace narrowcast::checkpoint
