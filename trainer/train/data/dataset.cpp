#include "trainer/train/data/dataset.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <system_error>
#include <utility>

#include "trainer/train/data/idx_images.h"
#include "trainer/train/data/text_corpus.h"
#include "trainer/train/data/text_dataset.h"

namespace narrowcast::data {
namespace {

constexpr uint64_t kRounds = 8;
constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15;  // 2^64 / phi: the increment of splitmix64

// The output function of splitmix64 (Steele, Lea, Flood 2014): every bit of the input reaches every bit of the result.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

void check_at_least_one(const char* name, int64_t value) {
  TORCH_CHECK_VALUE(value >= 1, name, " must be at least 1, but is ", value);
}

int64_t checked_micro_batch(const BatchPlanOptions& options) {
  check_at_least_one("global_batch", options.global_batch);
  check_at_least_one("world_size", options.world_size);
  check_at_least_one("accumulation_steps", options.accumulation_steps);
  const int64_t per_rank = options.global_batch / options.world_size;  // in two steps: their product might overflow
  TORCH_CHECK_VALUE(options.global_batch % options.world_size == 0 && per_rank % options.accumulation_steps == 0,
                    "global_batch must be divisible by world_size * accumulation_steps, but is ", options.global_batch,
                    " with world_size ", options.world_size, " and accumulation_steps ", options.accumulation_steps);
  return per_rank / options.accumulation_steps;
}

void check_below(const char* name, int64_t value, int64_t limit) {
  TORCH_CHECK_VALUE(value >= 0 && value < limit, name, " must be in 0..", limit - 1, ", but is ", value);
}

// Whole ones or not: what is wrong with them is said when they are read.
bool looks_like_images(const std::string& path) {
  const std::filesystem::path training = std::filesystem::path(path) / "train-images-idx3-ubyte";
  std::error_code ignored;  // What cannot be looked up cannot be read either, and that says why.
  return std::filesystem::exists(training, ignored) || std::filesystem::exists(training.string() + ".gz", ignored);
}

ReadData read_text(const DataRequest& request, const FitModel& fit) {
  const bool own = request.paths.empty();
  TextCorpus corpus = TextCorpus::from_paths(own ? own_text_paths() : request.paths);
  if (!request.vocabulary.empty()) {
    corpus = corpus.in_vocabulary(Vocabulary(request.vocabulary));
  }
  const int64_t context = fit({{"vocabulary_size", corpus.vocabulary().size()}});
  ReadData read = {.name = own ? "narrowcast's own sources and documents" : corpus.name(),
                   .hash = corpus.content_hash(),
                   .vocabulary = corpus.vocabulary().entries(),
                   .bigram_entropy = bigram_entropy(corpus.tokens())};
  read.dataset = std::make_unique<TextDataset>(std::move(corpus), context);
  return read;
}

ReadData read_images(const DataRequest& request, const FitModel& fit) {
  TORCH_CHECK_VALUE(request.paths.size() == 1, "data: ", request.model, " needs one folder of IDX files, but ",
                    request.paths.size(), " are given");
  auto images = std::make_unique<IdxImages>(IdxImagesOptions{.folder = request.paths[0]});
  fit({{"inputs", images->pixels()}, {"classes", images->classes()}});
  ReadData read = {.name = request.paths[0], .hash = images->content_hash()};
  read.dataset = std::move(images);
  return read;
}

}  // namespace

void check_indices(at::IntArrayRef indices, int64_t size) {
  TORCH_CHECK_VALUE(!indices.empty(), "indices must not be empty");
  for (const int64_t index : indices) {
    TORCH_CHECK_VALUE(index >= 0 && index < size, "indices must be in 0..", size - 1, ", but one is ", index);
  }
}

models::DataKind data_kind(const std::string& model, const std::vector<std::string>& paths) {
  const models::DataKind kind = models::any_model_row(model).data;
  if (kind != models::DataKind::kGiven) {
    return kind;
  }
  return paths.size() == 1 && looks_like_images(paths[0]) ? models::DataKind::kImages : models::DataKind::kText;
}

ReadData read_data(const DataRequest& request, const FitModel& fit) {
  switch (data_kind(request.model, request.paths)) {
    case models::DataKind::kText:
      return read_text(request, fit);
    case models::DataKind::kImages:
      return read_images(request, fit);
    case models::DataKind::kNone:
    case models::DataKind::kGiven:
      break;
  }
  TORCH_CHECK_VALUE(false, "data: ", request.model, " takes none");
}

SampleOrder::SampleOrder(int64_t size, uint64_t seed) : size_(size), seed_(seed), half_bits_(1) {
  TORCH_CHECK_VALUE(size >= 1, "size must be at least 1, but is ", size);
  const int bits = std::bit_width(static_cast<uint64_t>(size - 1));
  half_bits_ = std::max(1, (bits + 1) / 2);
}

uint64_t SampleOrder::permute(uint64_t value, uint64_t epoch_key) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t round_key = mix(epoch_key + round * kGoldenRatio);
    const uint64_t next = left ^ (mix(right ^ round_key) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

int64_t SampleOrder::at(int64_t position) const {
  TORCH_CHECK_VALUE(position >= 0, "position must be at least 0, but is ", position);
  const auto epoch = static_cast<uint64_t>(position / size_);
  const uint64_t epoch_key = mix(mix(seed_ + kGoldenRatio) + epoch);
  auto value = static_cast<uint64_t>(position % size_);
  do {
    value = permute(value, epoch_key);
  } while (value >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(value);
}

BatchPlan::BatchPlan(const BatchPlanOptions& options) : options_(options), micro_batch_(checked_micro_batch(options)) {}

std::vector<int64_t> BatchPlan::samples(const SampleOrder& order, int64_t rank, int64_t step,
                                        int64_t micro_step) const {
  check_below("rank", rank, options_.world_size);
  check_below("micro_step", micro_step, options_.accumulation_steps);
  TORCH_CHECK_VALUE(step >= 0, "step must be at least 0, but is ", step);
  const int64_t part = rank * options_.accumulation_steps + micro_step;
  const int64_t first = step * options_.global_batch + part * micro_batch_;
  std::vector<int64_t> indices(static_cast<size_t>(micro_batch_));
  for (int64_t i = 0; i < micro_batch_; ++i) {
    indices[static_cast<size_t>(i)] = order.at(first + i);
  }
  return indices;
}

}  // namespace narrowcast::data
