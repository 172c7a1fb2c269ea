#include "trainer/train/inference/evaluation_inputs.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <utility>

#include <narrowcast/char_gpt.h>
#include <narrowcast/mlp.h>
#include "trainer/train/data/idx_images.h"
#include "trainer/train/data/text_corpus.h"
#include "trainer/train/data/text_dataset.h"
#include "trainer/train/files/model_file.h"

namespace narrowcast::inference {
namespace {

// What TorchScript says is many lines long; the last one tells the reason.
std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of(" \n");
  const size_t begin = text.rfind('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1, end - begin);
}

LoadedModel load_model_file(const EvaluationJob& job) {
  files::SavedModel saved = files::load_model(job.file);
  TORCH_CHECK_VALUE(saved.name == models::CharGpt::kName || saved.name == models::Mlp::kName, "evaluate: ", job.file,
                    " holds the model ", saved.name, ", which has nothing to evaluate; char_gpt and mlp have");
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
  if (job.model == models::CharGpt::kName) {
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

ScriptModel::ScriptModel(torch::jit::Module module, std::string name)
    : Model("ScriptModel"), module_(std::move(module)), name_(std::move(name)) {}

at::Tensor ScriptModel::logits(const at::Tensor& inputs) {
  c10::IValue output;
  try {
    output = module_.forward({inputs});
  } catch (const std::exception& error) {
    TORCH_CHECK_VALUE(false, name_, ": its forward failed on inputs of shape ", inputs.sizes(), ": ",
                      last_line(error.what()));
  }
  TORCH_CHECK_VALUE(output.isTensor() && output.toTensor().is_floating_point(), name_,
                    ": its forward must return a tensor of logits, but returns ", output.tagKind());
  const at::Tensor logits = output.toTensor();
  TORCH_CHECK_VALUE(logits.dim() >= 2 && logits.size(0) == inputs.size(0), name_,
                    ": its forward must return logits of shape [batch, ..., classes], but for inputs of shape ",
                    inputs.sizes(), " it returns ", logits.sizes());
  return logits;
}

at::Tensor ScriptModel::forward(const models::Batch& batch) {
  const at::Tensor rows = logits(batch.inputs).flatten(0, -2);
  const at::Tensor targets = batch.targets.flatten();
  TORCH_CHECK_VALUE(rows.size(0) == targets.size(0), name_,
                    ": its forward must return one row of logits per target, but ", "returns ", rows.size(0),
                    " rows for ", targets.size(0), " targets");
  TORCH_CHECK_VALUE(targets.max().item<int64_t>() < rows.size(1), name_, ": has logits for ", rows.size(1),
                    " classes, but the data has a target ", targets.max().item<int64_t>());
  return at::cross_entropy_loss(rows.to(at::kFloat), targets);
}

LoadedModel load_for_evaluation(const EvaluationJob& job) {
  if (job.file.ends_with(".safetensors")) {
    return load_model_file(job);
  }
  TORCH_CHECK_VALUE(job.file.ends_with(".pt"), "evaluate: ", job.file,
                    " is neither named *.safetensors, a model file, nor *.pt, a TorchScript module");
  return load_script_file(job);
}

EvaluationData read_data(const EvaluationJob& job, const LoadedModel& loaded) {
  if (loaded.name == models::CharGpt::kName) {
    return read_text(job, loaded);
  }
  TORCH_CHECK_VALUE(job.data.size() == 1, "data: mlp needs one folder of IDX files, but ", job.data.size(),
                    " are given");
  auto images = std::make_unique<data::IdxImages>(data::IdxImagesOptions{.folder = job.data[0]});
  const uint64_t hash = images->content_hash();
  return {.dataset = std::move(images), .name = job.data[0], .hash = hash};
}

}  // namespace narrowcast::inference
