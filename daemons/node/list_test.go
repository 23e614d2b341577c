// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/patchbay-net/patchbay/internal/resident"
)

// lists waits until `ls` prints a text, with one space between columns.
func (l *lab) lists(want string) {
	l.Helper()
	l.await("a listing with "+want, func() bool {
		list, err := List(l.opts.Paths, "n1")
		var out bytes.Buffer
		if err == nil {
			err = list.Print(&out)
		}
		var lines []string
		for line := range strings.Lines(out.String()) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		return err == nil && strings.Contains(strings.Join(lines, "\n"), want)
	})
}

// The listing has the Nodes as the agent knows them, and what is wrong. It needs no agent.
func TestList(t *testing.T) {
	l := running(t, n2+" "+n3, 1, 2, 3)
	l.lists("NODE PODCIDRS ADDRESSES STATE\n" +
		"n1 10.244.1.0/24,fd00:244:0:1::/64 192.0.2.1,2001:db8::1 this node\n" +
		"n2 10.244.2.0/24,fd00:244:0:2::/64 192.0.2.2,2001:db8::2 known\n")
	l.api.remove("n2", true)
	l.api.cut(false)
	l.lists("n2 10.244.2.0/24,fd00:244:0:2::/64 192.0.2.2,2001:db8::2 missing since 20")
	bare := kubeNode(3)
	bare.Spec = corev1.NodeSpec{}
	l.api.set(bare)
	l.lists("wrong on another node: NodeLacksFields: Node n3")
	l.stop()
	list, err := List(l.opts.Paths, "n1")
	if err != nil || len(list.Nodes) != 3 || !list.Nodes[0].Self || list.Nodes[1].MissingSince.IsZero() || list.Heard == nil {
		t.Errorf("%+v, %v", list, err)
	}
	data, err := json.Marshal(list)
	if err != nil || !bytes.Contains(data, []byte(`{"nodes":[{"name":"n1","uid":`)) || !bytes.Contains(data, []byte(`"self":true`)) {
		t.Errorf("%s, %v", data, err)
	}
	old := silence.Seconds() + 1
	list.Heard = &old
	var out bytes.Buffer
	if err := list.Print(&out); err != nil || !strings.Contains(out.String(), "wrong on this node: the agent last reported 3m1s ago") {
		t.Errorf("%s, %v", &out, err)
	}
	if err := os.Remove(resident.ReportPath(l.opts.Paths, Service)); err != nil {
		t.Fatal(err)
	}
	l.lists("wrong on this node: the agent has reported nothing since the boot")
	if err := os.Remove(cachePath(l.opts.Paths)); err != nil {
		t.Fatal(err)
	}
	if _, err := List(l.opts.Paths, "n1"); err == nil || !strings.Contains(err.Error(), "has not heard of any Node yet") {
		t.Errorf("%v", err)
	}
}
