// The makers of all cases; each is defined in <op>_case.cc.
#pragma once
#include "case.h"

namespace trireme::harness {

std::unique_ptr<Case> make_matmul();

}  // namespace trireme::harness
