// A process group that operators and classes find by its name.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <string>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace narrowcast::testing {

// Registers a rank's group under a separate name for the lifetime of this object, because the ranks are threads and
// each process has one registry.
class RegisteredGroup {
 public:
  explicit RegisteredGroup(const c10::intrusive_ptr<c10d::ProcessGroup>& group)
      : name_("rank" + std::to_string(group->getRank())) {
    c10d::register_process_group(name_, group);
  }
  ~RegisteredGroup() { c10d::unregister_process_group(name_); }
  RegisteredGroup(const RegisteredGroup&) = delete;
  RegisteredGroup& operator=(const RegisteredGroup&) = delete;
  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

}  // namespace narrowcast::testing
