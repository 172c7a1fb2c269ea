// What a training must have in common with the one that it goes on from.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace narrowcast::checkpoint {

// Two objects of named values, e.g. {"hook": "int8"}. Throws c10::ValueError naming the first name whose values differ,
// both values and the checkpoint's `path`: "hook: is int4, but int8 in the checkpoint PATH". Names that both have come
// first; of one that only one has it says so: "error_feedback: is true, but the checkpoint PATH has none".
void check_settings(const nlohmann::json& saved, const nlohmann::json& current, const std::string& path);

// The names whose values differ, as "ranks (3, was 2), threads (1, was none)"; empty if there are none.
std::string describe_changes(const nlohmann::json& saved, const nlohmann::json& current);

}  // namespace narrowcast::checkpoint
