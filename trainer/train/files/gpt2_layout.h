// The layout of GPT-2's weights in files of Hugging Face's transformers: models::Gpt's tensors under other names, and
// the weights of its Linear layers transposed (Conv1D).
//
//   token_embedding                    wte
//   position_embedding                 wpe
//   blocks.N.attention_norm            h.N.ln_1
//   blocks.N.query_key_value           h.N.attn.c_attn    weight [width, 3 * width]
//   blocks.N.attention_output          h.N.attn.c_proj    weight [width, width]
//   blocks.N.mlp_norm                  h.N.ln_2
//   blocks.N.mlp_input                 h.N.mlp.c_fc       weight [width, 4 * width]
//   blocks.N.mlp_output                h.N.mlp.c_proj     weight [4 * width, width]
//   final_norm                         ln_f
#pragma once

#include <string>

#include <narrowcast/model.h>
#include "models/weight_only_int8.h"

namespace narrowcast::files {

// The name there of a module or tensor of a models::Gpt.
std::string gpt2_name(const std::string& name);

// The state of a models::Gpt (state_of) as that layout has it: views, so that what is copied into them is the model's.
models::StateDict in_gpt2_layout(const models::StateDict& state);

// Whether tensors of a file are named so.
bool has_gpt2_layout(const models::StateDict& tensors);

// Of tensors of a file named so, those that in_gpt2_layout gives: without the prefix "transformer." of a model with a
// head, the masks of attention (attn.bias, attn.masked_bias), and an output projection lm_head.weight that is
// wte.weight again. Throws CorruptInputError naming `path` and the tensor where it is another one, or a tensor that is
// there twice.
models::StateDict without_gpt2_extras(const std::string& path, const models::StateDict& tensors);

// The tensors for a model of at most as many positions: the first rows of the position embedding, as many as its state
// `to` has, as nanoGPT's crop_block_size leaves them. Both are in that layout.
models::StateDict with_positions_of(models::StateDict tensors, const models::StateDict& to);

// The options of models::Gpt that follow from the shapes of such tensors: all but the number of heads. Throws
// CorruptInputError naming `path` and an embedding that is missing or no matrix.
models::ModelOptions gpt2_options(const std::string& path, const models::StateDict& tensors);

}  // namespace narrowcast::files
