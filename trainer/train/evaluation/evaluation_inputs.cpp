#include "trainer/train/evaluation/evaluation_inputs.h"

#include <c10/util/Exception.h>

#include <utility>

#include <narrowcast/char_gpt.h>
#include "trainer/train/data/idx_images.h"
#include "trainer/train/data/text_dataset.h"
#include "trainer/train/data/text_files.h"
#include "trainer/train/evaluation/script_model.h"
#include "trainer/train/files/model_file.h"
#include "trainer/train/files/script_file.h"

namespace narrowcast::evaluation {
namespace {

LoadedModel load_model_file(const EvaluationJob& job) {
  files::SavedModel saved = files::load_model(job.file);
  TORCH_CHECK_VALUE(saved.name == "char_gpt" || saved.name == "mlp", "evaluate: ", job.file, " holds the model ",
                    saved.name, ", which has nothing to evaluate; char_gpt and mlp have");
  LoadedModel loaded = {.model = saved.model, .name = saved.name, .vocabulary = std::move(saved.vocabulary)};
  for (const auto& tensors : {saved.model->parameters(), saved.model->buffers()}) {
    loaded.state.insert(loaded.state.end(), tensors.begin(), tensors.end());
  }
  if (const auto gpt = std::dynamic_pointer_cast<models::CharGpt>(saved.model)) {
    loaded.next = {.context = gpt->shape().context,
                   .logits = [gpt](const at::Tensor& tokens) { return gpt->logits(tokens.unsqueeze(0))[0][-1]; }};
  }
  return loaded;
}

LoadedModel load_script_file(const EvaluationJob& job) {
  files::SavedScript saved = files::load_script(job.file);
  saved.module.eval();
  LoadedModel loaded = {.model = nullptr, .name = job.model, .vocabulary = files::script_vocabulary(job.file, saved)};
  for (const at::Tensor& parameter : saved.module.parameters()) {
    loaded.state.push_back(parameter);
  }
  for (const at::Tensor& buffer : saved.module.buffers()) {
    loaded.state.push_back(buffer);
  }
  const auto model = std::make_shared<ScriptModel>(std::move(saved.module), job.file);
  loaded.model = model;
  if (job.model == "char_gpt") {
    loaded.next = {.context = job.context,
                   .logits = [model](const at::Tensor& tokens) { return model->logits(tokens.unsqueeze(0))[0][-1]; }};
  }
  return loaded;
}

EvaluationData read_text(const EvaluationJob& job, const LoadedModel& loaded) {
  const bool own = job.data.empty();
  data::TextCorpus corpus = data::TextCorpus::from_paths(own ? data::own_text_paths() : job.data);
  if (!loaded.vocabulary.empty()) {
    corpus = corpus.in_vocabulary(data::Vocabulary(loaded.vocabulary));
  }
  EvaluationData data = {.dataset = nullptr,
                         .name = own ? "narrowcast's own sources and documents" : corpus.name(),
                         .hash = corpus.content_hash(),
                         .vocabulary = corpus.vocabulary().entries(),
                         .bigram_entropy = data::bigram_entropy(corpus.tokens())};
  data.dataset = std::make_unique<data::TextDataset>(std::move(corpus), loaded.next->context);
  return data;
}

}  // namespace

LoadedModel load_for_evaluation(const EvaluationJob& job) {
  if (job.file.ends_with(".safetensors")) {
    return load_model_file(job);
  }
  TORCH_CHECK_VALUE(job.file.ends_with(".pt"), "evaluate: ", job.file,
                    " is neither named *.safetensors, a model file, nor *.pt, a TorchScript module");
  return load_script_file(job);
}

EvaluationData read_data(const EvaluationJob& job, const LoadedModel& loaded) {
  if (loaded.name == "char_gpt") {
    return read_text(job, loaded);
  }
  TORCH_CHECK_VALUE(job.data.size() == 1, "data: mlp needs one folder of IDX files, but ", job.data.size(),
                    " are given");
  auto images = std::make_unique<data::IdxImages>(data::IdxImagesOptions{.folder = job.data[0]});
  const uint64_t hash = images->content_hash();
  return {.dataset = std::move(images), .name = job.data[0], .hash = hash};
}

}  // namespace narrowcast::evaluation
