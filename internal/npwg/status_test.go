// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package npwg

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/lightjson"
)

const podResult = `{"cniVersion":"1.1.0","interfaces":[{"name":"veth0"},{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"/run/netns/a"}],
	"ips":[{"interface":1,"address":"10.244.0.7/24"}]}`

// plan returns a plan with one attachment, whose ADD returned result.
func plan(version, result string) *Plan {
	p := &Plan{Network: "pods", IfName: "eth0", Default: json.RawMessage(podResult)}
	p.Interfaces = []Interface{{Definition: "shop/a", Network: "a", IfName: "net1", CNIVersion: version, State: Done, Result: json.RawMessage(result)}}
	return p
}

const defaultEntry = `{"name":"pods","interface":"eth0","ips":["10.244.0.7"],"mac":"02:00:00:00:00:01","default":true,"dns":{}}`

func TestStatuses(t *testing.T) {
	for name, c := range map[string]struct{ version, result, want string }{
		"5 first interface of the container": {"1.1.0", `{"cniVersion":"1.1.0","interfaces":[{"name":"veth1"},{"name":"net1","mac":"02:00:00:00:00:02","sandbox":"/n"}],"ips":[{"interface":1,"address":"10.1.0.7/16"}]}`,
			`{"name":"shop/a","interface":"net1","ips":["10.1.0.7"],"mac":"02:00:00:00:00:02","dns":{}}`},
		"5 several interfaces": {"1.0.0", `{"cniVersion":"1.0.0","interfaces":[{"name":"net1","sandbox":"/n"},{"name":"net1b","sandbox":"/n"}],"ips":[{"interface":1,"address":"10.1.0.7/16"},{"address":"fd00::7/64"}]}`,
			`{"name":"shop/a","interface":"net1","ips":["fd00::7"],"dns":{}},{"name":"shop/a","interface":"net1b","ips":["10.1.0.7"],"dns":{}}`},
		"5 no interface":   {"1.0.0", `{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.7/16"}]}`, `{"name":"shop/a","interface":"net1","ips":["10.1.0.7"],"dns":{}}`},
		"5 no result":      {"1.0.0", "", `{"name":"shop/a","interface":"net1","dns":{}}`},
		"5 ips by index":   {"1.0.0", `{"cniVersion":"1.0.0","interfaces":[{"name":"net1","sandbox":"/n"},{"name":"br0"}],"ips":[{"interface":0,"address":"10.1.0.7/16"},{"interface":1,"address":"10.1.0.1/16"}]}`, `{"name":"shop/a","interface":"net1","ips":["10.1.0.7"],"dns":{}}`},
		"5 before 0.3.0":   {"0.2.0", `{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.7/16"}}`, `{"name":"shop/a","interface":"net1","ips":["10.1.0.7"],"dns":{}}`},
		"5 dns and an MTU": {"1.1.0", `{"cniVersion":"1.1.0","interfaces":[{"name":"net1","mtu":9000,"sandbox":"/n"}],"dns":{"nameservers":["10.1.0.1"]}}`, `{"name":"shop/a","interface":"net1","mtu":9000,"dns":{"nameservers":["10.1.0.1"]}}`},
	} {
		list, err := plan(c.version, c.result).Statuses()
		got, merr := lightjson.Marshal(list)
		if err != nil || merr != nil || string(got) != "["+defaultEntry+","+c.want+"]" {
			t.Errorf("%s: %s, %v %v\nwant %s", name, got, err, merr, c.want)
		}
	}
}

// 5 default-route is there only if the annotation has it.
func TestStatusOfDefaultRoute(t *testing.T) {
	p := plan("1.1.0", "")
	p.Interfaces[0].Ask.DefaultRoute = []netip.Addr{netip.MustParseAddr("10.1.0.1")}
	list, err := p.Statuses()
	got, merr := lightjson.Marshal(list[1])
	if want := `{"name":"shop/a","interface":"net1","dns":{},"gateway":["10.1.0.1"],"default-route":["10.1.0.1"]}`; err != nil || merr != nil || string(got) != want {
		t.Errorf("%s, %v %v\nwant %s", got, err, merr, want)
	}
}

// 4.2 Each attachment has an entry, and 5 exactly one entry is the default. What is not attached has none.
func TestStatusCounts(t *testing.T) {
	p := plan("1.1.0", "")
	p.Interfaces = append(p.Interfaces, p.Interfaces[0], p.Interfaces[0])
	p.Interfaces[1].IfName, p.Interfaces[2].State = "net2", Attempted
	list, err := p.Statuses()
	if err != nil || len(list) != 3 || !list[0].Default || list[1].Default || list[2].Default || list[2].Interface != "net2" {
		t.Errorf("%+v, %v", list, err)
	}
	text, err := StatusText(list)
	if err != nil || !strings.HasPrefix(text, "[\n    {\n        \"name\": \"pods\",") {
		t.Errorf("%s, %v", text, err)
	}
}

// A result that cannot be read is an error with the name of the network.
func TestStatusOfBrokenResult(t *testing.T) {
	if _, err := plan("1.1.0", `{"ips":7}`).Statuses(); err == nil || !strings.Contains(err.Error(), "shop/a") {
		t.Error(err)
	}
	p := plan("1.1.0", "")
	p.Default = json.RawMessage("7")
	if _, err := p.Statuses(); err == nil || !strings.Contains(err.Error(), "pods") {
		t.Error(err)
	}
}

// A DEL removes what may exist, the newest first.
func TestBegun(t *testing.T) {
	p := &Plan{Interfaces: []Interface{{IfName: "net1", State: Done}, {IfName: "net2", State: Attempted}, {IfName: "net3"}}}
	list := p.Begun()
	if len(list) != 2 || list[0].IfName != "net2" || list[1].IfName != "net1" || p.Complete() {
		t.Errorf("%+v", list)
	}
}
