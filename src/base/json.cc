#define TRIREME_JSON_HERE
#include "base/json.h"

TRIREME_JSON_TEMPLATES()
