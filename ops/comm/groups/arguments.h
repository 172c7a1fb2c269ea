// What a rank's own arguments must be, and how a rank whose arguments are wrong takes part in a call all the same: it
// tells the others why it cannot, and all throw that. If it threw alone, the others would wait for it until their
// time-out.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace narrowcast::collectives {

// c10::ValueError if elements of `tensor` share memory with each other, as those of an expanded one do: such a tensor
// cannot hold what is written to it.
void check_writable(const std::string& name, const at::Tensor& tensor);

struct Refusal {
  bool wrong_type = false;  // A c10::TypeError, else a c10::ValueError.
  std::string reason;
};

// What `check` finds wrong with this rank's arguments: its c10::ValueError or c10::TypeError. Another c10::Error, of
// LibTorch about a tensor of a kind that the check does not know, counts as the former.
std::optional<Refusal> refusal_of(const std::function<void()>& check);

// Throws the error of `rank` in the words that all ranks use: "CALL on rank R: REASON", printable and bounded. Without
// a call: "rank R: REASON".
[[noreturn]] void throw_refusal(const Refusal& refusal, const std::string& call, int64_t rank);

// Tells the other ranks of this one's refusal by `tell`, a collective that throws on all ranks what they throw, as they
// are told. Where that fails with c10::DistBackendError, throws `refusal` and why the ranks could not be told.
[[noreturn]] void refuse_together(const Refusal& refusal, const std::function<void()>& tell);

}  // namespace narrowcast::collectives
