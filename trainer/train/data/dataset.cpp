#include "trainer/train/data/dataset.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "trainer/train/data/data_folder.h"
#include "trainer/train/data/idx_images.h"
#include "trainer/train/data/shares.h"
#include "trainer/train/data/tensor_folder.h"
#include "trainer/train/data/text_corpus.h"
#include "trainer/train/data/text_dataset.h"
#include "trainer/train/data/token_files.h"

namespace narrowcast::data {
namespace {

constexpr uint64_t kRounds = 8;
constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15;  // 2^64 / phi: the increment of splitmix64

// The output function of splitmix64 (Steele, Lea, Flood 2014): every bit of the input affects every bit of the result.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

void check_at_least_one(const char* name, int64_t value) {
  TORCH_CHECK_VALUE(value >= 1, name, " must be at least 1, but is ", value);
}

// The samples of each rank.
std::vector<int64_t> checked_shares(const BatchPlanOptions& options) {
  check_at_least_one("global_batch", options.global_batch);
  check_at_least_one("world_size", options.world_size);
  check_at_least_one("accumulation_steps", options.accumulation_steps);
  if (!options.shares.empty()) {
    check_given_shares(options);
    return options.shares;
  }
  TORCH_CHECK_VALUE(divides_evenly(options),
                    "global_batch must be divisible by world_size * accumulation_steps, but is ", options.global_batch,
                    " with world_size ", options.world_size, " and accumulation_steps ", options.accumulation_steps);
  return std::vector<int64_t>(static_cast<size_t>(options.world_size), samples_per_rank(options));
}

void check_below(const char* name, int64_t value, int64_t limit) {
  TORCH_CHECK_VALUE(value >= 0 && value < limit, name, " must be in 0..", limit - 1, ", but is ", value);
}

ReadData read_text(const DataRequest& request, const FitModel& fit) {
  const bool is_default = request.paths.empty();
  TextCorpus corpus = TextCorpus::from_paths(is_default ? std::vector{default_text_path()} : request.paths);
  if (!request.vocabulary.empty()) {
    corpus = corpus.in_vocabulary(Vocabulary(request.vocabulary));
  }
  const int64_t context = fit({{"vocabulary_size", corpus.vocabulary().size()}});
  ReadData read = {.name = is_default ? kDefaultTextFile : corpus.name(),
                   .hash = corpus.content_hash(),
                   .vocabulary = corpus.vocabulary().entries(),
                   .bigram_entropy = bigram_entropy(corpus.tokens())};
  read.dataset = std::make_unique<TextDataset>(std::move(corpus), context);
  return read;
}

// A bundled classifier has ten classes. A module's number of classes becomes known when the module is tried.
ReadData read_images(const DataRequest& request, const FitModel& fit) {
  TORCH_CHECK_VALUE(request.paths.size() == 1, "data: ", request.model, " needs one folder of IDX files, but ",
                    request.paths.size(), " are given");
  IdxImagesOptions options = {.folder = request.paths[0]};
  if (models::any_model_row(request.model).data == models::DataKind::kGiven) {
    options.classes = kAnyIdxClasses;
  }
  auto images = std::make_unique<IdxImages>(options);
  fit({{"inputs", images->pixels()}, {"classes", images->classes()}});
  ReadData read = {.name = request.paths[0], .hash = images->content_hash()};
  read.dataset = std::move(images);
  return read;
}

// A bundled model is sized for the greatest token, so all files are read to find it. A module already exists, but does
// not state its number of tokens: a token beyond it would end the process on a GPU without a reason.
ReadData read_tokens(const DataRequest& request, const FitModel& fit) {
  TokenFolder folder(request.paths[0]);
  TORCH_CHECK_VALUE(request.vocabulary_size.value_or(1) >= 1, "vocabulary: must be at least 1, but is ",
                    request.vocabulary_size.value_or(1));
  const bool is_made = models::any_model_row(request.model).data == models::DataKind::kGiven;
  TORCH_CHECK_VALUE(!is_made || request.vocabulary_size, "vocabulary: must be given with token files for ",
                    request.model, ": the model's file does not contain its vocabulary size");
  TokenOptions options;
  options.vocabulary_size = request.vocabulary_size ? *request.vocabulary_size : folder.greatest_token() + 1;
  options.context = fit({{"vocabulary_size", options.vocabulary_size}});
  ReadData read = {.name = folder.name(), .hash = folder.content_hash()};
  read.dataset = std::make_unique<TokenDataset>(std::move(folder), options);
  return read;
}

// A module takes any samples; a bundled model takes a classifier's samples.
ReadData read_tensors(const DataRequest& request, const FitModel& fit) {
  auto tensors = std::make_unique<TensorFolder>(request.paths[0], format_of(request.paths));
  models::ModelOptions sizes;
  if (models::any_model_row(request.model).data != models::DataKind::kGiven) {
    TORCH_CHECK_VALUE(tensors->has_pixels(), "data: ", request.model,
                      " needs inputs that are uint8 or floating-point, unlike the inputs in ", request.paths[0]);
    sizes = {{"inputs", tensors->inputs_per_sample()}, {"classes", tensors->classes()}};
  }
  fit(sizes);
  ReadData read = {.name = request.paths[0], .hash = tensors->content_hash()};
  read.dataset = std::move(tensors);
  return read;
}

models::DataKind kind_of(DataFormat format) {
  const bool is_text = format == DataFormat::kText || format == DataFormat::kTokens;
  return is_text ? models::DataKind::kText : models::DataKind::kImages;
}

}  // namespace

void check_indices(at::IntArrayRef indices, int64_t size) {
  TORCH_CHECK_VALUE(!indices.empty(), "indices must not be empty");
  for (const int64_t index : indices) {
    TORCH_CHECK_VALUE(index >= 0 && index < size, "indices must be in 0..", size - 1, ", but one is ", index);
  }
}

models::DataKind data_kind(const std::string& model, const std::vector<std::string>& paths) {
  const models::DataKind wanted = models::any_model_row(model).data;
  if (wanted == models::DataKind::kNone) {
    return wanted;
  }
  const DataFormat format = format_of(paths);
  const models::DataKind kind = kind_of(format);
  if (wanted == models::DataKind::kGiven) {
    return kind;
  }
  TORCH_CHECK_VALUE(wanted == kind || format == DataFormat::kText, "data: ", model, " learns from ",
                    wanted == models::DataKind::kText ? "text and tokens" : "images and other samples with classes",
                    ", but ", paths[0], " holds ", describe(format));
  return wanted;
}

bool holds_tokens(const std::vector<std::string>& paths) { return format_of(paths) == DataFormat::kTokens; }

ReadData read_data(const DataRequest& request, const FitModel& fit) {
  const models::DataKind kind = data_kind(request.model, request.paths);
  TORCH_CHECK_VALUE(kind != models::DataKind::kNone, "data: ", request.model, " takes no data");
  switch (format_of(request.paths)) {
    case DataFormat::kTokens:
      return read_tokens(request, fit);
    case DataFormat::kSafetensors:
    case DataFormat::kNpy:
      return read_tensors(request, fit);
    case DataFormat::kIdx:
    case DataFormat::kText:
      break;
  }
  return kind == models::DataKind::kText ? read_text(request, fit) : read_images(request, fit);
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

bool divides_evenly(const BatchPlanOptions& options) {
  // Two divisions: the product of the divisors might overflow.
  return options.global_batch % options.world_size == 0 && samples_per_rank(options) % options.accumulation_steps == 0;
}

BatchPlan::BatchPlan(const BatchPlanOptions& options) : options_(options) {
  options_.shares = checked_shares(options);
  first_ = {0};
  for (const int64_t share : options_.shares) first_.push_back(first_.back() + share);
  is_even_ = std::ranges::all_of(options_.shares, [&](int64_t share) {
    return share == options_.shares[0] && share % options_.accumulation_steps == 0;
  });
  micro_batch_ = std::max<int64_t>(1, samples_per_rank(options_) / options_.accumulation_steps);
}

// The micro-step begins there in the global batch. The first micro-steps have a sample more if some have.
int64_t BatchPlan::offset(int64_t rank, int64_t micro_step) const {
  const int64_t share = options_.shares.at(static_cast<size_t>(rank));
  const int64_t steps = options_.accumulation_steps;
  return first_.at(static_cast<size_t>(rank)) + share / steps * micro_step + std::min(micro_step, share % steps);
}

double BatchPlan::weight(int64_t rank, int64_t micro_step) const {
  return static_cast<double>(offset(rank, micro_step + 1) - offset(rank, micro_step)) /
         static_cast<double>(options_.global_batch);
}

std::vector<int64_t> BatchPlan::samples(const SampleOrder& order, int64_t rank, int64_t step,
                                        int64_t micro_step) const {
  check_below("rank", rank, options_.world_size);
  check_below("micro_step", micro_step, options_.accumulation_steps);
  TORCH_CHECK_VALUE(step >= 0, "step must be at least 0, but is ", step);
  std::vector<int64_t> indices;
  for (int64_t i = offset(rank, micro_step); i < offset(rank, micro_step + 1); ++i) {
    indices.push_back(order.at(step * options_.global_batch + i));
  }
  return indices;
}

}  // namespace narrowcast::data
