// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package podnet

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
)

// cluster returns the prefixes of a dual-stack cluster.
func cluster(t *testing.T) []netip.Prefix {
	t.Helper()
	return prefixes(t, []string{"10.244.0.0/16", "fd00:244::/56"})
}

// own returns the prefixes of one of its nodes.
func own(t *testing.T) []netip.Prefix {
	t.Helper()
	return prefixes(t, []string{"10.244.1.0/24", "fd00:244:0:1::/64"})
}

// The network names the MTU only if it is known, and is recognized either way.
func TestNetworkText(t *testing.T) {
	n := Network{Cluster: cluster(t), Node: own(t)}
	if strings.Contains(string(n.Text()), "mtu") || !IsOurs(n.Text()) || IsTemplate(n.Text()) {
		t.Errorf("%s", n.Text())
	}
	n.MTU = 1450
	if !strings.Contains(string(n.Text()), `"mtu": 1450,`) || !IsOurs(n.Text()) {
		t.Errorf("%s", n.Text())
	}
	if n.Encrypted = true; !strings.Contains(string(n.Text()), `"unreachable": ["10.244.0.0/16", "fd00:244::/56"],`) || !IsOurs(n.Text()) {
		t.Errorf("%s", n.Text())
	}
	if n.Node = nil; !IsTemplate(n.Text()) || !IsOurs(n.Text()) {
		t.Errorf("%s", n.Text())
	}
	if IsOurs([]byte(`{"name": "cbr0"}`)) {
		t.Error("a file of others")
	}
}

// The network has the plugin networks last if pods may have further networks. Without the option, it is what it was.
func TestFurther(t *testing.T) {
	plain := Network{Node: own(t)}.Text()
	for f, want := range map[Further]string{
		{On: true}: `{"capabilities":{"io.kubernetes.cri.pod-annotations":true},"type":"networks"}`,
		{On: true, BinDir: "/opt/cni/bin", Isolated: true}: `{"binDir":"/opt/cni/bin","capabilities":{"io.kubernetes.cri.pod-annotations":true},"namespaceIsolation":true,"type":"networks"}`,
		{BinDir: "/opt/cni/bin", Isolated: true}:           `{"type":"policy"}`,
	} {
		file := Network{Node: own(t), Further: f}.Text()
		var list struct {
			Plugins []struct {
				Capabilities map[string]bool
				Plugins      []map[string]any
			}
		}
		if err := json.Unmarshal(file, &list); err != nil {
			t.Fatalf("%v\n%s", err, file)
		}
		members := list.Plugins[0].Plugins
		got, err := json.Marshal(members[len(members)-1])
		if err != nil || string(got) != want || list.Plugins[0].Capabilities["io.kubernetes.cri.pod-annotations"] != f.On || !IsOurs(file) {
			t.Errorf("%+v: %s, want %s, ours %v, %v", f, got, want, IsOurs(file), err)
		}
		if !f.On && string(file) != string(plain) {
			t.Errorf("%+v changes the file:\n%s", f, file)
		}
	}
}

// Network policies apply to containers that are not pods as the operator says.
func TestContainers(t *testing.T) {
	for _, c := range []struct {
		Containers
		want string
	}{
		{Containers{}, `{"type":"policy"}`},
		{Containers{Namespace: "shop"}, `{"labels":{},"namespace":"shop","type":"policy"}`},
		{Containers{"shop", map[string]string{"tier": "2", "app": "web"}}, `{"labels":{"app":"web","tier":"2"},"namespace":"shop","type":"policy"}`},
	} {
		file := Network{Node: own(t), Containers: c.Containers}.Text()
		var list struct {
			Plugins []struct{ Plugins []map[string]any }
		}
		if err := json.Unmarshal(file, &list); err != nil {
			t.Fatalf("%v\n%s", err, file)
		}
		members := list.Plugins[0].Plugins
		got, err := json.Marshal(members[len(members)-1])
		if err != nil || string(got) != c.want {
			t.Errorf("%+v: got %s, want %s, %v", c.Containers, got, c.want, err)
		}
		if !IsOurs(file) {
			t.Errorf("not ours: %s", file)
		}
	}
}
