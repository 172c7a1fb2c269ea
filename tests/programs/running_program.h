// A program under test, whose streams the test controls.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace narrowcast::testing {

// How a program ended.
struct ProgramEnd {
  int exit_code = -1;  // -1: a signal ended it
  int signal = 0;
  std::string output;  // its whole standard output and error
  std::string errors;
};

// Every wait here ends with an exception after a deadline that only a hang reaches.
class RunningProgram {
 public:
  // Starts arguments[0], a path or a name in PATH, with this process's environment changed by `environment`, where an
  // empty value removes a variable. It sees no GPU (CUDA_VISIBLE_DEVICES=-1) unless `environment` sets that variable:
  // results must not depend on the machine that runs the tests.
  explicit RunningProgram(const std::vector<std::string>& arguments,
                          const std::map<std::string, std::string>& environment = {});
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;
  // Kills the program if it still runs.
  ~RunningProgram();

  pid_t pid() const { return pid_; }
  void send(int signal) const;

  // Waits until its standard output contains `text` `times` times.
  void wait_for_output(const std::string& text, int times = 1);
  void wait_for_errors(const std::string& text, int times = 1);
  // Waits until its standard error contains `error_text` or its standard output contains `output_text`.
  void wait_for_either(const std::string& error_text, const std::string& output_text);

  // Waits until the program has ended, and it and everything that inherited its streams have closed them.
  ProgramEnd wait();

  // Stops reading standard output, as `head` does after enough lines.
  void close_output();

  // The output so far.
  const std::string& output() const { return output_; }
  const std::string& errors() const { return errors_; }

 private:
  void read_until(const std::function<bool()>& enough);

  pid_t pid_ = 0;
  int output_pipe_ = -1;
  int error_pipe_ = -1;
  std::string output_;
  std::string errors_;
};

// Runs a program to its end.
ProgramEnd run_to_end(const std::vector<std::string>& arguments,
                      const std::map<std::string, std::string>& environment = {});

// The number of occurrences of `part` in `text`.
int count_of(const std::string& part, const std::string& text);

// Waits for effects of a program that are not announced, such as files. Gives up as RunningProgram does.
void wait_until(const std::function<bool()>& condition);

// Waits until process `pid` is gone, or is a zombie.
void wait_until_gone(pid_t pid);

}  // namespace narrowcast::testing
