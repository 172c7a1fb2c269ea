// The layout of GPT-2's weights in files of Hugging Face's transformers. It has models::Gpt's tensors under other
// names, and the weights of its Linear layers are transposed (Conv1D):
//
//   models::Gpt                 | file            | weight in the file
//   ----------------------------|-----------------|-------------------
//   token_embedding             | wte             |
//   position_embedding          | wpe             |
//   blocks.N.attention_norm     | h.N.ln_1        |
//   blocks.N.query_key_value    | h.N.attn.c_attn | [width, 3 * width]
//   blocks.N.attention_output   | h.N.attn.c_proj | [width, width]
//   blocks.N.mlp_norm           | h.N.ln_2        |
//   blocks.N.mlp_input          | h.N.mlp.c_fc    | [width, 4 * width]
//   blocks.N.mlp_output         | h.N.mlp.c_proj  | [4 * width, width]
//   final_norm                  | ln_f            |
#pragma once

#include <string>

#include <narrowcast/model.h>
#include "models/quantization/weight_only_int8.h"

namespace narrowcast::files {

// The name in that layout of a module or tensor of a models::Gpt.
std::string gpt2_name(const std::string& name);

// The state of a models::Gpt (state_of) in that layout. The tensors are views: copying into them changes the model.
models::StateDict in_gpt2_layout(const models::StateDict& state);

// Whether a file's tensors have the names of that layout.
bool has_gpt2_layout(const models::StateDict& tensors);

// Reduces a file's tensors in that layout to those of in_gpt2_layout. It removes the prefix "transformer." of a model
// with a head, the masks of attention (attn.bias, attn.masked_bias), and an output projection lm_head.weight that
// repeats wte.weight. Throws CorruptInputError naming `path` and the tensor if lm_head.weight differs, or a tensor
// occurs twice.
models::StateDict without_gpt2_extras(const std::string& path, const models::StateDict& tensors);

// The tensors for a model with no more positions than they have: the position embedding is cut to the number of rows in
// the model's state `to`, as in nanoGPT's crop_block_size. Both are in that layout.
models::StateDict with_positions_of(models::StateDict tensors, const models::StateDict& to);

// The options of models::Gpt that follow from the shapes of such tensors: all except the number of heads. Throws
// CorruptInputError naming `path` and an embedding that is missing or not a matrix.
models::ModelOptions gpt2_options(const std::string& path, const models::StateDict& tensors);

}  // namespace narrowcast::files
