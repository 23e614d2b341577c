// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/conformance/report"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

// podmanBreaks lists the rules for runtimes that Debian's podman 4.3 breaks on its CNI backend, with the reason.
var podmanBreaks = map[string]string{
	"config-capabilities": "its libcni passes the key on",
	"del-fails":           "podman rm -f succeeds, and nothing calls the other plugins any more",
	"killed":              "after a kill during an ADD, podman rm -f calls no DEL",
	"result-older":        "its libcni passes the result of an older plugin on as it is",
}

// podman breaks these rules for runtimes and no others, through the script that the suite has for it.
func TestPodmanAsRuntime(t *testing.T) {
	program := filepath.Join(os.Getenv(workEnv), "patchbay-conformance")
	if os.Getenv(insideEnv) == "" {
		if err := goBuild(program, "../../cmd/patchbay-conformance"); err != nil {
			t.Fatal(err)
		}
	}
	onNode(t, func(t *testing.T) {
		root, err := reftest.Root()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(program, "runtime", "--max-version", "1.0.0", "--without", "netns", "--without", "args", "--without", "capabilities",
			"--json", "-", "--", root+"/conformance/runtimes/drivers/podman4")
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		var broken *exec.ExitError
		if err != nil && !(errors.As(err, &broken) && broken.ExitCode() == 1) {
			t.Fatal(err)
		}
		var found struct{ Plugins []report.Plugin }
		if err := json.Unmarshal(out, &found); err != nil {
			t.Fatal(err)
		}
		got := []string{}
		for _, o := range found.Plugins[0].Outcomes {
			t.Logf("%s: %s %s", o.Rule.Name, o.Verdict, o.Why)
			if o.Verdict == conformance.Failed {
				got = append(got, o.Rule.Name)
			}
		}
		if want := slices.Sorted(maps.Keys(podmanBreaks)); !slices.Equal(got, want) {
			t.Errorf("podman breaks %q, want %q", got, want)
		}
	})
}
