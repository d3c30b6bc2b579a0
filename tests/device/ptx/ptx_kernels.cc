// The table of the kernels that were translated from PTX, and the choice of a planted mistake.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/device/fake_driver/device_kernels.h"
#include "tests/device/ptx/ptx_machine.h"

namespace tutti::ptx {

// made by translate.py
void tutti_evaluate_simple(const device::Launch& argument);
void tutti_evaluate_ll(const device::Launch& argument);
void tutti_evaluate_ll128(const device::Launch& argument);
void tutti_transfer(const device::TransferLaunch& argument);
void tutti_reduce(const device::PlainWork& argument);
void tutti_copy(const device::CopyWork& argument);

const Mistake& planted_mistake() {
  static const Mistake planted = [] {
    Mistake mistake;
    const char* const text = std::getenv("PTX_MISTAKE");
    if (text == nullptr) return mistake;
    mistake.relaxed_post = std::string_view(text) == "relaxed_post";
    mistake.relaxed_look = std::string_view(text) == "relaxed_look";
    if (mistake.relaxed_post || mistake.relaxed_look) return mistake;
    char* end = nullptr;
    mistake.barrier = static_cast<int>(std::strtol(text, &end, 10));
    if (*text != '\0' && *end == '\0') return mistake;
    std::fprintf(stderr, "PTX_MISTAKE has the unknown value '%s'\n", text);
    std::abort();
  }();
  return planted;
}

}  // namespace tutti::ptx

namespace tutti::testing {

const DeviceKernels& device_kernels() {
  // Translated functions have thousands of variables.
  static constexpr DeviceKernels kKernels = {.evaluate_simple = &ptx::tutti_evaluate_simple,
                                             .evaluate_ll = &ptx::tutti_evaluate_ll,
                                             .evaluate_ll128 = &ptx::tutti_evaluate_ll128,
                                             .transfer = &ptx::tutti_transfer,
                                             .reduce = &ptx::tutti_reduce,
                                             .copy = &ptx::tutti_copy,
                                             .stack_bytes = std::size_t{1} << 20};
  return kKernels;
}

}  // namespace tutti::testing
