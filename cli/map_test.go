// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/doctor"
	"github.com/patchbay-net/patchbay/cli/netmap"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/netstate"
)

// leavesTool is `leaves FILE`: it prints each value of a JSON document on a line, after its path.
func leavesTool(args []string) error {
	data, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		return err
	}
	printLeaves("", v)
	return nil
}

func printLeaves(path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, below := range v {
			printLeaves(path+"."+key, below)
		}
	case []any:
		for i, below := range v {
			printLeaves(fmt.Sprintf("%s.%d", path, i), below)
		}
	default:
		fmt.Println(strings.TrimPrefix(path, "."), v)
	}
}

func parsedList(t *testing.T, text, file string) *chain.List {
	t.Helper()
	l, err := chain.ParseList([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	l.File = file
	return l
}

// The model has each attachment once, in its network, also if the network has no file; and each finding where it belongs.
func TestMapModel(t *testing.T) {
	const conf = `{"cniVersion":"1.1.0","name":%q,"plugins":[{"type":"bridge","bridge":"br%s","ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}]}`
	found := []doctor.Finding{{Check: "pools", Level: doctor.Warning, What: "nearly full", Fix: "x"}}
	node := []doctor.Finding{{Check: "forwarding", Level: doctor.Problem, What: "off", Fix: "y"}}
	attachment := func(network, id string, state life.State) *localAttachment {
		return &localAttachment{Network: network, ContainerID: id, IfName: "eth0", NetNS: "/run/netns/" + id, state: state, Alive: state != life.Dead}
	}
	list := []*localAttachment{attachment("pods", "a", life.Alive), attachment("docker1", "b", life.Dead), attachment("pods", "c", life.Unsure), attachment("docker1", "d", life.Alive), attachment("lost", "e", life.Alive)}
	list[1].config = fmt.Appendf(nil, conf, "othername", "1")
	list[4].Driver = "docker"
	checked := func(id string, err error) *finding {
		return newFinding("pods", chain.Attachment{ContainerID: id, IfName: "eth0"}).fill(err)
	}
	other := checked("d", errors.New("of another network"))
	r := &mapped{
		networks: []*network{{List: parsedList(t, fmt.Sprintf(conf, "pods", "0"), "/net.d/pods")}, {List: parsedList(t, fmt.Sprintf(conf, "pods", "9"), "/net.d/twice")}},
		attached: list, node: node, of: map[string][]doctor.Finding{"pods": found},
		checked:  []*finding{checked("a", errors.Join(&netstate.Differences{Lost: []netstate.Lost{{What: "masquerade", Detail: "x"}}}, errors.New("eth0 is down"))), checked("c", nil), other},
		policies: map[*localAttachment][]string{list[0]: {"shop/db"}},
	}
	m := r.model()
	var got []string
	for _, n := range m.Networks {
		for _, a := range n.Attachments {
			text := n.Name + "/" + a.ContainerID
			for _, f := range a.Findings {
				text += fmt.Sprintf(": %s: %s (%s)", f.Level, f.What, f.Fix)
			}
			got = append(got, text)
		}
	}
	want := []string{
		"pods/a: problem: masquerade is missing from the firewall; eth0 is down (" + onHost + ")",
		"pods/c: warning: whether its namespace exists is not certain (patchbay gc prints the reason)",
		"docker1/b: problem: its namespace is gone (patchbay gc --apply)",
		"docker1/d",
		"lost/e",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%q\nwant\n%q", got, want)
	}
	pods, docker := m.Networks[0], m.Networks[1]
	if pods.Link != "br0" || pods.File != "/net.d/pods" || !reflect.DeepEqual(pods.Findings, found) || !reflect.DeepEqual(m.Findings, node) || docker.Name != "docker1" || docker.Link != "br1" || docker.File != "" || docker.Findings != nil || m.Networks[2].Driver != "docker" {
		t.Errorf("%+v", m)
	}
	if !reflect.DeepEqual(pods.Attachments[0].Policies, []string{"shop/db"}) || pods.Attachments[1].Policies != nil {
		t.Errorf("policies %+v", pods.Attachments)
	}
}

// The checks that the map runs with one network alone exist in doctor under these ids.
func TestChecksOfOneNetwork(t *testing.T) {
	of := 0
	for _, c := range doctor.Checks() {
		if judgesOne(c) {
			of++
		}
	}
	if of != 4 {
		t.Errorf("%d of doctor's checks judge one network", of)
	}
}

// An empty node has a page, too.
func TestMapOfNothing(t *testing.T) {
	m := new(mapped).model()
	if text := indented(m); !strings.Contains(text, `"networks": []`) || !strings.Contains(text, `"findings": []`) {
		t.Error(text)
	}
	if page := netmap.HTML(m); !strings.Contains(page, "0 attachments in 0 networks") {
		t.Error(page)
	}
}
