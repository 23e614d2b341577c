// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"bytes"
	"io"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/services"
	"github.com/patchbay-net/patchbay/internal/services/saved"
)

// written returns what a Cluster with some objects saves.
func written(t *testing.T, c *Cluster) []byte {
	t.Helper()
	c.SetAddresses([]netip.Addr{netip.MustParseAddr("172.16.0.1")})
	must(t, c.Replace(Services, listOf(service("s1", `,"externalIPs":["192.0.2.1"],"sessionAffinity":"ClientIP"`), service("s2", ""))))
	must(t, c.Replace(EndpointSlices, listOf(slice("e1", "s1", "", "10.244.1.1"), slice("e2", "s1", "", "10.244.1.2"), slice("e3", "s2", "", "10.244.1.3"))))
	must(t, c.Replace(Nodes, listOf(node("n1", ""))))
	must(t, c.Replace(ServiceCIDRs, listOf(cidr("10.96.0.0/16"))))
	var out bytes.Buffer
	must(t, c.Save(&out))
	return out.Bytes()
}

func restore(c *Cluster, data []byte) error {
	all, err := saved.Read(bytes.NewReader(data))
	if err != nil {
		return err
	}
	return c.Restore(all)
}

// What was saved gives the state that its writer had. The lists that follow are no change if they have the same objects.
func TestSave(t *testing.T) {
	c := New("n1", services.Options{})
	if err := c.Save(io.Discard); err == nil {
		t.Error("it saves what was not listed")
	}
	data := written(t, c)
	if again := written(t, c); !bytes.Equal(data, again) {
		t.Error("the same objects are saved in another way")
	}
	c.next()
	fresh := New("n1", services.Options{})
	if _, ok := fresh.Cached(); ok {
		t.Error("a Cluster without objects knows some")
	}
	must(t, restore(fresh, data))
	fresh.SetAddresses([]netip.Addr{netip.MustParseAddr("172.16.0.1")})
	s, ok := fresh.Cached()
	want := unpacked(c.state)
	if !ok || !reflect.DeepEqual(unpacked(s), want) {
		t.Errorf("restored\n%+v\nwant\n%+v", unpacked(s), want)
	}
	if _, complete := fresh.next(); complete {
		t.Error("what was saved counts as listed")
	}
	fresh.due = newChanges()
	written(t, fresh)
	if !fresh.due.empty() {
		t.Errorf("a list of the same objects changes %v", fresh.due.names)
	}
	fresh.due.everything()
	fresh.next()
	if got := unpacked(fresh.state); !reflect.DeepEqual(got, want) {
		t.Errorf("listed\n%+v\nwant\n%+v", got, want)
	}
}

// A file that cannot be used changes nothing.
func TestDamagedCache(t *testing.T) {
	data := written(t, New("n1", services.Options{}))
	plain := string(data)
	lines := strings.SplitAfter(plain, "\n")
	for about, text := range map[string]string{
		"another node":     strings.Replace(plain, `"Name":"n1"`, `"Name":"n2"`, 1),
		"another schema":   strings.Replace(plain, `"Schema":1`, `"Schema":2`, 1),
		"a missing line":   strings.Join(lines[:len(lines)-2], ""),
		"no object":        lines[0] + "{}\n" + strings.Join(lines[2:], ""),
		"half an object":   plain[:len(plain)-9],
		"an endpoint":      strings.Replace(plain, "10.244.1.1 ", "10.244.1 ", 1),
		"another state":    strings.Replace(plain, "10.244.1.1  rs", "10.244.1.1  rx", 1),
		"no state":         strings.Replace(plain, "10.244.1.1  rs", "10.244.1.1 ", 1),
		"half of hints":    strings.Replace(plain, "10.244.1.1  rs", "10.244.1.1  rs {", 1),
		"nothing":          "",
		"half of the file": plain[:len(plain)/2],
	} {
		c := New("n1", services.Options{})
		err := restore(c, []byte(text))
		if _, ok := c.Cached(); err == nil || ok || len(c.objects.kept) > 0 {
			t.Errorf("%s: %v, and %d Services", about, err, len(c.objects.kept))
		}
	}
}

// The format does not change without another schema.
func TestCacheFormat(t *testing.T) {
	plain := written(t, New("n1", services.Options{}))
	const want = `{"Schema":1,"Objects":5,"Node":{"Name":"n1","Zone":"","Addresses":["172.16.0.1"],"Pods":["10.244.1.0/24"]},"Options":{"ProxyName":"","NodePorts":null,"IgnoreExternalIPs":false,"MasqueradeAll":false},"CIDRs":{"kubernetes":["10.96.0.0/16"]}}
{"Service":{"Name":{"Namespace":"shop","Name":"s1"},"Type":"ClusterIP","ClusterIPs":["10.96.0.49"],"ExternalIPs":["192.0.2.1"],"Ports":[{"Protocol":6,"Number":80}],"Affinity":10800}}
`
	if !strings.HasPrefix(string(plain), want) {
		t.Errorf("got\n%s\nwant\n%s: if a field has changed, change the schema of package saved, and the text here", plain, want)
	}
	const slice = `{"Slice":{"Name":"e1","Service":{"Namespace":"shop","Name":"s1"},"Ports":[{"Protocol":6,"Number":8080}],"Endpoints":["10.244.1.1  rs"]}}
`
	if !strings.Contains(string(plain), slice) {
		t.Errorf("got\n%s\nwant\n%s: if a field has changed, change the schema of package saved, and the text here", plain, slice)
	}
}
