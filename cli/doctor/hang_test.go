// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A plugin hangs in STATUS. That is a finding, and the other networks are still checked. A busy machine
// starts the plugin of the other network late, so the test allows more time until that one answers.
func TestStatusOfAPluginThatHangs(t *testing.T) {
	b := newBench(t)
	b.must(os.WriteFile(filepath.Join(b.bin, "hangs"), []byte("#!/bin/sh\nexec sleep 600\n"), 0o755)) //nolint:gosec // a program
	b.must(os.WriteFile(filepath.Join(b.bin, "refuses"), []byte(refuses), 0o755))                     //nolint:gosec // a program
	b.network("a", `{"type":"hangs"}`)
	b.network("b", `{"type":"refuses"}`)
	var found []Finding
	for b.askTime = 200 * time.Millisecond; b.askTime < time.Minute; b.askTime *= 3 {
		found = b.check("status")
		if !slices.ContainsFunc(found, func(f Finding) bool { return strings.Contains(f.What, "plugin refuses did not answer") }) {
			break
		}
	}
	b.compare("status", found, []string{
		fmt.Sprintf("problem: network a takes no containers now: plugin hangs did not answer STATUS within %v", b.askTime),
		"problem: network b takes no containers now: not now",
	})
}

const refuses = "#!/bin/sh\necho '{\"cniVersion\":\"1.1.0\",\"code\":50,\"msg\":\"not now\"}'\nexit 1\n"
