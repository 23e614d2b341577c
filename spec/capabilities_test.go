// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"
)

// The keys are those of CONVENTIONS.md, only set values are written, and a plugin reads the values that a runtime
// wrote.
func TestCapabilities(t *testing.T) {
	c := Capabilities{
		PortMappings: []PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}, {HostPort: 53, ContainerPort: 53, Protocol: "udp", HostIP: netip.MustParseAddr("::1")}},
		IPRanges:     [][]IPRange{{{Subnet: netip.MustParsePrefix("10.1.2.0/24"), RangeStart: netip.MustParseAddr("10.1.2.3")}}},
		Bandwidth:    Bandwidth{IngressRate: 1<<63 + 1, IngressBurst: 1600},
		DNS:          CapabilityDNS{Servers: []string{"8.8.8.8"}, Searches: []string{"a"}},
		IPs:          []string{"10.0.0.1/24"}, MAC: "02:00:00:00:00:01", InfinibandGUID: "c2:11:22:33:44:55:66:77",
		DeviceID: "0000:04:00.5", Aliases: []string{"db"}, CgroupPath: "/a",
	}
	data, err := json.Marshal(c.Map())
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"aliases":["db"],"bandwidth":{"ingressRate":9223372036854775809,"ingressBurst":1600},"cgroupPath":"/a","deviceID":"0000:04:00.5",` +
		`"dns":{"servers":["8.8.8.8"],"searches":["a"]},"infinibandGUID":"c2:11:22:33:44:55:66:77","ipRanges":[[{"subnet":"10.1.2.0/24","rangeStart":"10.1.2.3"}]],` +
		`"ips":["10.0.0.1/24"],"mac":"02:00:00:00:00:01","portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"},` +
		`{"hostPort":53,"containerPort":53,"protocol":"udp","hostIP":"::1"}]}`
	if string(data) != want {
		t.Errorf("got  %s\nwant %s", data, want)
	}
	var back Capabilities
	if err := json.Unmarshal(data, &back); err != nil || !reflect.DeepEqual(back, c) {
		t.Errorf("read back: %+v, %v", back, err)
	}
	if m := (Capabilities{MAC: "x"}).Map(); len(m) != 1 {
		t.Errorf("values that are not set are there: %v", m)
	}
	// containerd writes an empty hostIP, and capitals.
	if err := json.Unmarshal([]byte(`{"portMappings":[{"HostPort":80,"ContainerPort":8080,"Protocol":"tcp","HostIP":""}]}`), &back); err != nil || back.PortMappings[0].HostPort != 80 {
		t.Errorf("containerd's form: %+v, %v", back.PortMappings, err)
	}
}
