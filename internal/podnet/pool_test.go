// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package podnet

import "testing"

// The pool of a network is found in the files of flannel and kindnet, and in ours.
func TestPoolOf(t *testing.T) {
	kindnet := `{"cniVersion": "0.3.1", "name": "kindnet", "plugins": [
		{"type": "ptp", "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam-state", "ranges": [[{"subnet": "10.244.1.0/24"}]]}}, {"type": "portmap"}]}`
	took := Network{Node: own(t), Pool: Pool{"kindnet", "/run/cni-ipam-state"}}
	for text, want := range map[string]Pool{
		`{"name": "cbr0", "plugins": [{"type": "flannel", "delegate": {"hairpinMode": true}}]}`: {Name: "cbr0"},
		`{"name": "x", "plugins": [{"ipam": {"type": "other", "dataDir": "/x"}}]}`:              {Name: "x"},
		`{"name": "x", "ipam": {"type": "host-local", "dataDir": "relative"}}`:                  {Name: "x"},
		`{"name": "../x", "plugins": []}`:                                                       {},
		"nonsense":                                                                              {},
		kindnet:                                                                                 took.Pool,
		string(took.Text()):                                                                     took.Pool,
		string(Network{Node: took.Node}.Text()):                                                 {Name: Name},
	} {
		if got := PoolOf([]byte(text)); got != want {
			t.Errorf("%+v, want %+v in\n%s", got, want, text)
		}
	}
	if !IsOurs(took.Text()) || IsOurs([]byte(kindnet)) {
		t.Errorf("%s", took.Text())
	}
}
