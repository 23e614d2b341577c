// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmplugin

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/test/cnmtest"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/spec"
)

// loseRecords removes the records of attachments, and nothing else.
func (l *lab) loseRecords() {
	l.Helper()
	for _, path := range l.attachments() {
		endpointtest.Must(l.T, os.Remove(path))
	}
}

// TestLostRecord leaves an endpoint that only the driver knows. It does not disturb an ADD, and a
// DEL ends it.
func TestLostRecord(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	p, other := l.Pod("a", `"driver":"lab"`), l.Pod("other", `"driver":"lab"`).Add()
	endpointtest.Must(t, p.Do(spec.Add))
	endpointtest.Must(t, os.Remove(l.record(p)))
	endpointtest.Must(t, p.Conn().LinkDel(p.Link("eth0")))
	l.srv.Calls()
	endpointtest.Must(t, p.Do(spec.Add))
	var calls []string
	for _, m := range l.srv.Methods() {
		calls = append(calls, strings.TrimPrefix(m, "NetworkDriver."))
	}
	l.Want("calls", strings.Join(calls, " "), "Plugin.Activate GetCapabilities CreateEndpoint RevokeExternalConnectivity Leave DeleteEndpoint "+
		"CreateEndpoint Join EndpointOperInfo")
	endpointtest.Must(t, p.Do(spec.Check))
	endpointtest.Must(t, os.Remove(l.record(p)))
	endpointtest.Must(t, p.Do(spec.Del))
	l.Want("endpoints", fmt.Sprint(l.driver.Endpoints()), "1")
	endpointtest.Must(t, other.Do(spec.Check))
	endpointtest.Must(t, p.Do(spec.Add))
	l.loseRecords()
	back := l.srv.Away(t, draw.All(t))
	endpointtest.Must(t, p.Do(spec.Del))
	l.Want("records of unknown endpoints", fmt.Sprint(l.attachments()), "[]")
	back()
	endpointtest.Must(t, p.Do(spec.Add)) // the endpoint still exists
	endpointtest.Must(t, p.Do(spec.Del))
	endpointtest.Must(t, other.Do(spec.Del))
	l.clean("after DEL")
}

// record returns the path of a pod's record.
func (l *lab) record(p *endpointtest.Pod) string {
	l.Helper()
	for _, path := range l.attachments() {
		if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), fmt.Sprintf(`"containerID":%q`, p.Call.ContainerID)) {
			return path
		}
	}
	l.Fatalf("no record of %s", p.Name)
	return ""
}

// TestExistsForEver uses a driver that always answers that the endpoint exists. The ADD does not
// ask it without end. If the driver then goes away, a later call ends the endpoint.
func TestExistsForEver(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	l.Pod("first", both).Add() // creates the network
	x := l.Pod("x", both)
	l.srv.Fault("NetworkDriver.CreateEndpoint", -1, cnmtest.Refuse("endpoint already exists"))
	l.srv.Calls()
	x.Refused("endpoint already exists")
	l.Want("tries", fmt.Sprint(count(l.srv.Methods(), "NetworkDriver.CreateEndpoint")), "2")
	l.srv.Fault("NetworkDriver.Leave", -1, cnmtest.Cut())
	if err := x.Do(spec.Add); spec.ErrorCode(err) != spec.CodeTryAgain {
		t.Errorf("code %d, %v", spec.ErrorCode(err), err)
	}
	l.srv.Well()
	endpointtest.Must(t, x.Do(spec.Add))
	endpointtest.Must(t, x.Do(spec.Del))
	l.Want("endpoints and addresses out", fmt.Sprint(l.driver.Endpoints(), l.driver.Addresses()), "1 4")
}

// TestBackInTime lets the driver go away while an ADD ends the old attachment of its name. The
// driver answers again when the ADD creates the new attachment.
func TestBackInTime(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	p := l.Pod("a", both)
	for _, method := range []string{"RevokeExternalConnectivity", "Leave", "DeleteEndpoint"} {
		endpointtest.Must(t, p.Do(spec.Add))
		back := l.srv.Away(t, draw.All(t))
		endpointtest.Must(t, p.Do(spec.Del))
		back()
		l.srv.Fault("NetworkDriver."+method, 1, cnmtest.Cut())
		endpointtest.Must(t, p.Do(spec.Add))
		endpointtest.Must(t, p.Do(spec.Check))
		l.Want(method+": endpoints and addresses out", fmt.Sprint(l.driver.Endpoints(), l.driver.Addresses()), "1 4")
		endpointtest.Must(t, p.Do(spec.Del))
		l.clean(method)
		l.Want(method+": addresses out", fmt.Sprint(l.driver.Addresses()), "2")
	}
}

// TestReleasedBeforeForgotten runs an ADD that ends another attachment but cannot give its
// address back. The next ADD then does both.
func TestReleasedBeforeForgotten(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	conf := `"driver":"lab","ipam":{"type":"host-local","subnet":"10.97.0.0/24"}`
	a, b, c := l.Pod("a", conf), l.Pod("b", strings.Replace(conf, "host-local", "absent", 1)), l.Pod("c", conf)
	endpointtest.Must(t, a.Do(spec.Add))
	back := l.srv.Away(t, draw.All(t))
	endpointtest.Must(t, a.Do(spec.Del))
	back()
	b.Refused("absent")
	l.Want("endpoints", fmt.Sprint(l.driver.Endpoints()), "0") // the driver ended the endpoint
	endpointtest.Must(t, c.Do(spec.Add))
	endpointtest.Must(t, c.Do(spec.Del))
	l.clean("after DEL")
	l.Want("records", fmt.Sprint(l.attachments()), "[]")
}
