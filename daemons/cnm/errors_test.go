// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnm

import (
	"errors"
	"fmt"
	"testing"
)

// TestWords pins what error texts of real drivers mean.
func TestWords(t *testing.T) {
	for text, want := range map[string]string{
		"network 48fe7c14 not found":                             "missing",
		"unknown network 48fe7c14":                               "missing",
		"No such network: 48fe7c14":                              "missing",
		"Network 48fe7c14 does not exist":                        "missing",
		"network doesn't exist":                                  "missing",
		"could not find network, it is not known":                "missing",
		"invalid network id 48fe7c14":                            "missing",
		"unknown pool LocalDefault/10.0.0.0/8":                   "missing",
		"network 48fe7c14 already exists":                        "exists",
		"a network with that id exists":                          "exists",
		"pool overlaps with one that is in use":                  "exists",
		"duplicate network 48fe7c14":                             "exists",
		"no available IPv4 addresses on this network's pools":    "",
		"permission denied":                                      "",
		"failed to create bridge: device or resource busy":       "",
		"'b3429f0e7eade9e86b59f7f6db06ca4ef7d212eb5accaa4761a0'": "",
	} {
		err := fmt.Errorf("around: %w", &DriverError{"NetworkDriver.X", text, 200})
		got := ""
		if IsMissing(err) {
			got = "missing"
		}
		if SaysExists(err) {
			got += "exists"
		}
		if got != want {
			t.Errorf("%q is understood as %q, want %q", text, got, want)
		}
	}
	if err := errors.New("not found"); IsMissing(err) || SaysExists(err) {
		t.Error("an error of ours is taken for the driver's")
	}
}
