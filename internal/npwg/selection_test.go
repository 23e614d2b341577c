// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package npwg

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/lightjson"
)

// show writes selections as "namespace/name@interface ask", without what is empty.
func show(list []Selection) string {
	var out []string
	for i := range list {
		s := &list[i]
		text := s.String()
		if s.Interface != "" {
			text += "@" + s.Interface
		}
		if data, err := lightjson.Marshal(s.Ask); err != nil || string(data) != "{}" {
			text += " " + string(data)
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// The names of the cases begin with the clause of the standard.
func TestParse(t *testing.T) {
	for name, c := range map[string]struct{ annotation, want, fails string }{
		"4.1 short form":          {annotation: "a,b", want: "shop/a, shop/b"},
		"4.1 JSON form":           {annotation: `[{"name":"a"},{"name":"b"}]`, want: "shop/a, shop/b"},
		"4.1 empty":               {annotation: ""},
		"4.1 blanks":              {annotation: " \n"},
		"4.1 empty list":          {annotation: "[]"},
		"4.1.1 own namespace":     {annotation: "net-a", want: "shop/net-a"},
		"4.1.1 other namespace":   {annotation: "infra/net-a", want: "infra/net-a"},
		"4.1.1 spaces":            {annotation: " a , infra/b ", want: "shop/a, infra/b"},
		"4.1.1 interface":         {annotation: "a@eth1,infra/b@eth2", want: "shop/a@eth1, infra/b@eth2"},
		"4.1.1 bad character":     {annotation: "Net_A", fails: `network 1, "Net_A": "Net_A" is no name`},
		"4.1.1 bad namespace":     {annotation: "a/b/c", fails: "is no name"},
		"4.1.1 empty item":        {annotation: "a,,b", fails: `network 2, "": "" is no name`},
		"4.1.1 bad interface":     {annotation: "a@much-too-long-name", fails: "interface name"},
		"4.1.1 empty interface":   {annotation: "a@", fails: "interface name"},
		"3.3 good names":          {annotation: "0,a-b,a1", want: "shop/0, shop/a-b, shop/a1"},
		"3.3 bad names":           {annotation: "-a", fails: "is no name"},
		"4.1.2 unknown key":       {annotation: `[{"name":"a","gateway":["10.0.0.1"]}]`, want: "shop/a"},
		"4.1.2 foreign key":       {annotation: `[{"name":"a","example.com/x":1}]`, want: "shop/a"},
		"4.1.2 no list":           {annotation: `{"name":"a"}`, fails: "want a list of objects"},
		"4.1.2 no objects":        {annotation: `["a"]`, fails: "network 1"},
		"4.1.2 no JSON":           {annotation: `[{"name":"a"`, fails: "want a list of objects"},
		"4.1.2.1.1 name missing":  {annotation: `[{"namespace":"infra"}]`, fails: "network 1, \"\": it has no name"},
		"4.1.2.1.1 name dotted":   {annotation: `[{"name":"a.b"}]`, want: "shop/a.b"},
		"4.1.2.1.1 name bad":      {annotation: `[{"name":"../a"}]`, fails: "cannot be the name"},
		"4.1.2.1.2 empty":         {annotation: `[{"name":"a","namespace":""}]`, want: "shop/a"},
		"4.1.2.1.2 other":         {annotation: `[{"name":"a","namespace":"infra"}]`, want: "infra/a"},
		"4.1.2.1.2 bad":           {annotation: `[{"name":"a","namespace":"../x"}]`, fails: "cannot be the name"},
		"4.1.2.1.3 v4":            {annotation: `[{"name":"a","ips":["10.1.0.7"]}]`, want: `shop/a {"ips":["10.1.0.7"]}`},
		"4.1.2.1.3 v6":            {annotation: `[{"name":"a","ips":["fd00::7"]}]`, want: `shop/a {"ips":["fd00::7"]}`},
		"4.1.2.1.3 length":        {annotation: `[{"name":"a","ips":["10.1.0.7/16"]}]`, want: `shop/a {"ips":["10.1.0.7/16"]}`},
		"4.1.2.1.3 empty list":    {annotation: `[{"name":"a","ips":[]}]`, fails: "ips is empty"},
		"4.1.2.1.3 bad":           {annotation: `[{"name":"a","ips":["10.1.0"]}]`, fails: `"10.1.0" in ips is no IP address`},
		"4.1.2.1.4 good":          {annotation: `[{"name":"a","mac":"02:00:00:00:00:07"}]`, want: `shop/a {"mac":"02:00:00:00:00:07"}`},
		"4.1.2.1.4 bad":           {annotation: `[{"name":"a","mac":"02:00:00:00:00:07:08:09"}]`, fails: "want 6 bytes"},
		"4.1.2.1.5 set":           {annotation: `[{"name":"a","interface":"eth1"}]`, want: "shop/a@eth1"},
		"4.1.2.1.5 invalid":       {annotation: `[{"name":"a","interface":"a/b"}]`, fails: "interface name"},
		"4.1.2.1.5 former key":    {annotation: `[{"name":"a","interfaceRequest":"eth1"}]`, want: "shop/a@eth1"},
		"4.1.2.1.6 passed":        {annotation: `[{"name":"a","cni-args":{"x":[1]}}]`, want: `shop/a {"cni-args":{"x":[1]}}`},
		"4.1.2.1.7 good":          {annotation: `[{"name":"a","portMappings":[{"hostPort":80,"containerPort":8080,"protocol":"UDP"}]}]`, want: `shop/a {"portMappings":[{"hostPort":80,"containerPort":8080,"protocol":"udp"}]}`},
		"4.1.2.1.7 default TCP":   {annotation: `[{"name":"a","portMappings":[{"hostPort":80,"containerPort":8080}]}]`, want: `shop/a {"portMappings":[{"hostPort":80,"containerPort":8080,"protocol":"tcp"}]}`},
		"4.1.2.1.7 empty list":    {annotation: `[{"name":"a","portMappings":[]}]`, fails: "portMappings is empty"},
		"4.1.2.1.7 port 0":        {annotation: `[{"name":"a","portMappings":[{"containerPort":80}]}]`, fails: "from 1 to 65535"},
		"4.1.2.1.7 port 65536":    {annotation: `[{"name":"a","portMappings":[{"hostPort":80,"containerPort":65536}]}]`, fails: "from 1 to 65535"},
		"4.1.2.1.7 bad protocol":  {annotation: `[{"name":"a","portMappings":[{"hostPort":80,"containerPort":80,"protocol":"icmp"}]}]`, fails: "want TCP, UDP or SCTP"},
		"4.1.2.1.8 good":          {annotation: `[{"name":"a","bandwidth":{"ingressRate":1000,"ingressBurst":10}}]`, want: `shop/a {"bandwidth":{"ingressRate":1000,"ingressBurst":10}}`},
		"4.1.2.1.8 default burst": {annotation: `[{"name":"a","bandwidth":{"egressRate":1000}}]`, want: `shop/a {"bandwidth":{"egressRate":1000}}`},
		"4.1.2.1.8 empty":         {annotation: `[{"name":"a","bandwidth":{}}]`, fails: "bandwidth is empty"},
		"4.1.2.1.8 zero":          {annotation: `[{"name":"a","bandwidth":{"egressRate":0}}]`, fails: "a rate or burst of 0"},
		"4.1.2.1.8 burst alone":   {annotation: `[{"name":"a","bandwidth":{"egressBurst":10}}]`, fails: "a burst needs the rate"},
		"4.1.2.1.9 v4 and v6":     {annotation: `[{"name":"a","default-route":["10.0.0.1","fd00::1"]}]`, want: `shop/a {"default-route":["10.0.0.1","fd00::1"]}`},
		"4.1.2.1.9 empty":         {annotation: `[{"name":"a","default-route":[]}]`, want: `shop/a {"default-route":[]}`},
		"4.1.2.1.9 bad":           {annotation: `[{"name":"a","default-route":["10.0.0.0/8"]}]`, fails: "want the address of a gateway"},
		"4.1.2.1.10 good":         {annotation: `[{"name":"a","infiniband-guid":"c2:11:22:33:44:55:66:77"}]`, want: `shop/a {"infiniband-guid":"c2:11:22:33:44:55:66:77"}`},
		"4.1.2.1.10 20 bytes":     {annotation: `[{"name":"a","infiniband-guid":"00:00:00:00:fe:80:00:00:00:00:00:00:c2:11:22:33:44:55:66:77"}]`, fails: "want 8 bytes"},
		"4.1.2.1.11 passed":       {annotation: `[{"name":"a","ipam-claim-reference":"vm.a"}]`, want: `shop/a {"ipam-claim-reference":"vm.a"}`},
		"4.1.2.1.11 with ips":     {annotation: `[{"name":"a","ipam-claim-reference":"vm.a","ips":["10.0.0.1"]}]`, fails: "ips and ipam-claim-reference"},
		"4.2 twice the same":      {annotation: "a,a", want: "shop/a, shop/a"},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := Parse(c.annotation, "shop")
			if c.fails != "" {
				if !errors.Is(err, ErrAnnotation) || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("error %v, want %q", err, c.fails)
				}
				return
			}
			if got := show(list); err != nil || got != c.want {
				t.Errorf("%s, %v\nwant %s", got, err, c.want)
			}
		})
	}
}

func TestName(t *testing.T) {
	for name, c := range map[string]struct{ annotation, want, fails string }{
		"by place":                        {annotation: "a,b", want: "shop/a@net1, shop/b@net2"},
		"a name uses up its number":       {annotation: "a,b@foo,c", want: "shop/a@net1, shop/b@foo, shop/c@net3"},
		"4.2 twice the same":              {annotation: "a,a", want: "shop/a@net1, shop/a@net2"},
		"4.1.2.1.5 used by an earlier":    {annotation: "a@foo,b@foo", fails: "network shop/b cannot have the interface foo, which network shop/a has"},
		"4.1.2.1.5 used by a given name":  {annotation: "a@net2,b", fails: "network shop/b cannot have the interface net2"},
		"4.1.2.1.5 used by the default":   {annotation: "a@eth0", fails: "which the pod's default network has"},
		"4.1.2.1.5 used by a later place": {annotation: "a,b@net1", fails: "network shop/b cannot have the interface net1"},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := Parse(c.annotation, "shop")
			if err != nil {
				t.Fatal(err)
			}
			err = Name(list, "eth0")
			switch {
			case c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)):
				t.Errorf("error %v, want %q", err, c.fails)
			case c.fails == "" && (err != nil || show(list) != c.want):
				t.Errorf("%s, %v\nwant %s", show(list), err, c.want)
			}
		})
	}
}

// 7.4 An implementation may restrict which definitions a pod uses.
func TestAllowed(t *testing.T) {
	for namespace, allowed := range map[string]bool{"shop": true, "default": true, "infra": false} {
		err := Allowed(&Selection{Namespace: namespace, Name: "a"}, "shop", []string{"default"})
		if (err == nil) != allowed {
			t.Errorf("%s: %v", namespace, err)
		}
	}
}

// A name of the annotation becomes the name of a file, so none may leave its directory.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"a,ns/b@eth1", `[{"name":"a","ips":["10.0.0.1/8"],"cni-args":{}}]`, "[", "@", "/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, annotation string) {
		list, err := Parse(annotation, "shop")
		if err != nil {
			return
		}
		for i := range list {
			if path := fmt.Sprintf("/%s/%s", list[i].Namespace, list[i].Name); strings.Contains(path, "..") || strings.Count(path, "/") != 2 {
				t.Errorf("%q selects %q", annotation, path)
			}
		}
		if err := Name(list, "eth0"); err == nil && len(list) > 0 && list[0].Interface == "" {
			t.Errorf("%q has an interface without a name", annotation)
		}
	})
}
