#include "trainer/train/job/train_job.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include <utility>

#include <narrowcast/char_gpt.h>
#include <narrowcast/models.h>
#include "trainer/train/data/idx_images.h"
#include "trainer/train/data/text_dataset.h"
#include "trainer/train/data/text_files.h"

namespace narrowcast::job {
namespace {

// The model over `inputs`' data, whose size it must have.
std::shared_ptr<models::Model> make_model(const TrainJob& job, const models::ModelOptions& size_of_data) {
  models::ModelOptions options = job.model_options;
  for (const auto& [name, size] : size_of_data) {
    options[name] = size;
  }
  at::manual_seed(static_cast<uint64_t>(job.seed));
  return models::create_model(job.model, options);
}

JobInputs make_text_inputs(const TrainJob& job) {
  const bool own = job.data.empty();
  data::TextCorpus corpus = data::TextCorpus::from_paths(own ? data::own_text_paths() : job.data);
  JobInputs inputs;
  inputs.model = make_model(job, {{"vocabulary_size", static_cast<int64_t>(corpus.vocabulary().size())}});
  inputs.data_name = own ? "narrowcast's own sources and documents" : corpus.name();
  inputs.data_hash = corpus.content_hash();
  inputs.vocabulary = corpus.vocabulary().entries();
  inputs.bigram_entropy = data::bigram_entropy(corpus.tokens());
  inputs.unit = "tokens";
  inputs.units_per_sample = dynamic_cast<const models::CharGpt&>(*inputs.model).shape().context;
  inputs.dataset = std::make_unique<data::TextDataset>(std::move(corpus), inputs.units_per_sample);
  return inputs;
}

JobInputs make_image_inputs(const TrainJob& job) {
  TORCH_CHECK_VALUE(job.data.size() == 1, "data: mlp needs one folder of IDX files, but ", job.data.size(),
                    " are given");
  auto images = std::make_unique<data::IdxImages>(data::IdxImagesOptions{.folder = job.data[0]});
  JobInputs inputs;
  inputs.model = make_model(job, {{"inputs", images->pixels()}, {"classes", images->classes()}});
  inputs.data_name = job.data[0];
  inputs.data_hash = images->content_hash();
  inputs.dataset = std::move(images);
  return inputs;
}

}  // namespace

JobInputs make_inputs(const TrainJob& job) {
  TORCH_CHECK_VALUE(job.seed >= 0, "seed: must be at least 0, but is ", job.seed);
  if (job.model == "char_gpt") {
    return make_text_inputs(job);
  }
  if (job.model == "mlp") {
    return make_image_inputs(job);
  }
  JobInputs inputs;
  inputs.model = make_model(job, {});
  inputs.data_name = "none";
  return inputs;
}

}  // namespace narrowcast::job
