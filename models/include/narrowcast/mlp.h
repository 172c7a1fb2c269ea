// A multi-layer perceptron that classifies images.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <narrowcast/linear.h>
#include <narrowcast/model.h>

namespace narrowcast::models {

// Shape of an Mlp. Every field is an option of create_model("mlp", ...).
struct MlpOptions {
  int64_t inputs = 784;  // pixels per image, 1..16777216
  int64_t hidden = 128;  // width of each hidden layer, 1..65536
  int64_t layers = 2;    // hidden layers, each followed by ReLU, 0..256; 0 makes a linear classifier
  int64_t classes = 10;  // 1..65536
};

// Linear layers (with biases, LibTorch's own initialisation) and ReLUs.
class NARROWCAST_EXPORT Mlp : public Model {
 public:
  // The name by which create_model makes it.
  static constexpr const char* kName = "mlp";

  // Throws c10::ValueError if an option is out of its range.
  explicit Mlp(const MlpOptions& options = {});

  // Makes the model with the given options, e.g. {{"hidden", 64}}; see create_model.
  static std::shared_ptr<Mlp> create(const ModelOptions& options);
  // See models::count_parameters.
  static int64_t count_parameters(const ModelOptions& options);
  // The names of its options.
  static std::vector<std::string> option_names();

  // images [B, ...] with `inputs` values each -> float32 [B, classes]. uint8 pixels are divided by 255; floating-point
  // pixels are used unchanged.
  at::Tensor logits(const at::Tensor& images);

  // inputs as above, targets int64 [B] in 0..classes-1 -> mean cross entropy in nats.
  at::Tensor forward(const Batch& batch) override;

  bool announces_layers() const override { return true; }

  // The weight of the last layer.
  std::vector<at::Tensor> embeddings_and_heads() const override;

  ModelOptions options() const override;

 private:
  bool has_label_smoothing() const override { return true; }

  MlpOptions shape_;
  std::vector<Linear> layers_;
};

}  // namespace narrowcast::models
