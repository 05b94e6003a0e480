// Which kernels this processor gets, and of what libraries: for people, not for decisions.
#pragma once
#include <string>

namespace trireme::cpu {

std::string simd_kernels();         // of Highway's compiled targets the one that runs: "AVX3"
std::string onednn_version();       // "2.6.3"
std::string onednn_instructions();  // what its matrix products use: "AVX512_CORE_BF16"

}  // namespace trireme::cpu
