// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestValid distinguishes an empty list, which libcni writes as null, from a request without a
// list. A GC without a list must remove nothing.
func TestValid(t *testing.T) {
	one := []AttachmentKey{{ContainerID: "c", IfName: "eth0"}}
	for _, c := range []struct {
		conf string
		want []AttachmentKey
		ok   bool
	}{
		{`{}`, nil, false},
		{`{"cni.dev/valid-attachments": null, "cni.dev/attachments": null}`, nil, true},
		{`{"cni.dev/valid-attachments": []}`, []AttachmentKey{}, true},
		{`{"cni.dev/valid-attachments": [{"containerID": "c", "ifname": "eth0"}]}`, one, true},
		{`{"cni.dev/attachments": [{"containerID": "c", "ifname": "eth0"}]}`, one, true},
		{`{"cni.dev/valid-attachments": null, "cni.dev/attachments": [{"containerID": "c", "ifname": "eth0"}]}`, nil, true},
	} {
		conf, err := ParseConf([]byte(c.conf))
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := conf.Valid(); ok != c.ok || !cmp.Equal(got, c.want) {
			t.Errorf("%s: valid are %v, %v; want %v, %v", c.conf, got, ok, c.want, c.ok)
		}
	}
}
