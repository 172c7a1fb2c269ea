#include "trainer/program/exit_code.h"

#include <c10/util/Exception.h>

#include <exception>
#include <iostream>
#include <string>

#include "ops/errors.h"
#include "trainer/files/input/printable.h"

namespace narrowcast::program {
namespace {

// LibTorch appends a backtrace to what(); what users need is the first line of the message.
std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

// What the exception that is being handled means.
Failure classify() {
  try {
    throw;
  } catch (const CorruptInputError& error) {
    return {kCorruptInput, error.what_without_backtrace()};
  } catch (const OutputError& error) {
    return {kOutputFailed, error.what_without_backtrace()};
  } catch (const c10::DistError& error) {
    return {kPeerFailed, error.what_without_backtrace()};
  } catch (const c10::ValueError& error) {
    return {kWrongUse, error.what_without_backtrace()};
  } catch (const c10::TypeError& error) {
    return {kWrongUse, error.what_without_backtrace()};
  } catch (const c10::Error& error) {
    return {kInternalError, error.what_without_backtrace()};
  } catch (const std::exception& error) {
    return {kInternalError, error.what()};
  }
}

}  // namespace

int run_program(std::string_view program, const std::function<int()>& body, const FailureListener& on_failure) {
  try {
    return body();
  } catch (const std::exception&) {
    Failure failure = classify();
    failure.message = printable(first_line(failure.message));
    std::cerr << program << ": " << failure.message << std::endl;
    if (on_failure) {
      on_failure(failure);
    }
    return failure.code;
  }
}

}  // namespace narrowcast::program
