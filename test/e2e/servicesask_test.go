// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/daemons/test/probe"
)

// namedBy asks a server for its name, from a namespace.
func namedBy(ns, network, target string) (name string, err error) {
	err = within(ns, func() (err error) { name, err = probe.Name(network, target); return err })
	return name, err
}

// named waits for an answer.
func (s *served) named(who, ns, network, target string) (name string) {
	s.Helper()
	eventually(s, fmt.Sprintf("%s asks %s %s", who, network, target), func() (err error) {
		name, err = namedBy(ns, network, target)
		return err
	})
	return name
}

// all waits until exactly these pods answer, in connections enough to meet each of them.
func (s *served) all(who, ns, network, target string, want []string) {
	s.Helper()
	eventually(s, fmt.Sprintf("%s reaches %s %s", who, network, target), func() error {
		seen, err := s.seen(ns, network, target, tries)
		if err == nil && !slices.Equal(seen, slices.Sorted(slices.Values(want))) {
			err = fmt.Errorf("%v answer, want %v", seen, want)
		}
		return err
	})
}

// tries is how many connections are made to meet each of four endpoints: one of them is missed once in 3 million times.
const tries = 60

// seen returns the names of those who answer, sorted.
func (s *served) seen(ns, network, target string, n int) (names []string, err error) {
	s.Helper()
	for range n {
		name, err := namedBy(ns, network, target)
		if err != nil {
			return names, err
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// only fails the test unless one pod answers all connections.
func (s *served) only(who, ns, network, target, want string) {
	s.Helper()
	if seen, err := s.seen(ns, network, target, tries); err != nil || len(seen) != 1 || seen[0] != want {
		s.Errorf("%s %s answers %s by %v (%v), want only %s", network, target, who, seen, err, want)
	}
}

// never waits until a pod has left a Service, and fails the test if the pod answers after that.
func (s *served) never(who, ns, network, target, gone string) {
	s.Helper()
	left := func() error {
		seen, err := s.seen(ns, network, target, tries)
		if err == nil && slices.Contains(seen, gone) {
			err = fmt.Errorf("%v answer", seen)
		}
		return err
	}
	what := fmt.Sprintf("%s no longer meets %s at %s %s", who, gone, network, target)
	eventually(s, what, left)
	if err := left(); err != nil {
		s.Errorf("%s: %v", what, err)
	}
}

// withoutLabel takes a pod out of the Service web while do runs. The pod stays ready.
func (s *served) withoutLabel(pod string, do func()) {
	s.Helper()
	s.kubectl("label", "pod", pod, "set-")
	do()
	s.kubectl("label", "pod", pod, "set=web")
	s.everywhere(func(who, ns, target string) { s.all(who, ns, "tcp", target, s.web) })
}

// seesOwn fails the test unless the server sees an address of the client.
func (s *served) seesOwn(ns, network, target, addr string) {
	s.Helper()
	eventually(s, fmt.Sprintf("%s asks %s %s", addr, network, target), func() error {
		return within(ns, func() error {
			seen, err := probe.Who(network, target)
			if err == nil {
				s.seenAs(target, seen.String(), addr)
			}
			return err
		})
	})
}

// resolves waits until a resolver knows the addresses of a name.
func (s *served) resolves(who, ns, network, server, name string, want []string) {
	s.Helper()
	r := net.Resolver{PreferGo: true, Dial: dialer(ns, network, server)}
	eventually(s, fmt.Sprintf("%s asks %s %s for %s", who, network, server, name), func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		addrs, err := r.LookupHost(ctx, name)
		sort.Strings(addrs)
		if err == nil && !slices.Equal(addrs, want) {
			err = fmt.Errorf("%v, want %v", addrs, want)
		}
		return err
	})
}

// dialer connects from a namespace. If server is not "", it connects only to this one.
func dialer(ns, network, server string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, addr string) (c net.Conn, err error) {
		if server != "" {
			addr = server
		}
		err = within(ns, func() (err error) { c, err = new(net.Dialer).DialContext(ctx, network, addr); return err })
		return c, err
	}
}

// answers waits until a page has a status and a text.
func (s *served) answers(ns, url string, status int, text string) {
	s.Helper()
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: dialer(ns, "tcp", ""), DisableKeepAlives: true}}
	eventually(s, fmt.Sprintf("%s has %d, %s", url, status, text), func() error {
		answer, err := client.Get(url)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err == nil && (answer.StatusCode != status || !strings.Contains(string(body), text)) {
			err = fmt.Errorf("%s: %s", answer.Status, body)
		}
		return err
	})
}

// hold opens connections to the Service. end fails the test unless each of them answers by the endpoint to which it was opened.
func (s *served) hold() (end func()) {
	s.Helper()
	var held []net.Conn
	s.everywhere(func(_, ns, target string) {
		for range len(s.web) {
			c, err := dialer(ns, "tcp", "")(context.Background(), "tcp", target)
			if err != nil {
				s.Fatal(err)
			}
			held = append(held, c)
		}
	})
	return func() {
		s.Helper()
		for _, c := range held {
			c.SetDeadline(time.Now().Add(patience))
			fmt.Fprintln(c, "name")
			if answer, err := bufio.NewReader(c).ReadString('\n'); err != nil || !slices.Contains(s.web, strings.TrimSpace(answer)) {
				s.Errorf("a connection to %v: %q (%v)", c.RemoteAddr(), answer, err)
			}
			c.Close()
		}
	}
}

// elements lists what the kernel of a node has of Services, sorted, without the revision of the table.
func (s *served) elements(node string) string {
	s.Helper()
	text := s.node(node, "nft", "-n", "list", "table", "inet", "patchbay_services")
	list := strings.FieldsFunc(strings.Replace(text, s.revision(node), "", 1), func(r rune) bool { return r == ',' || r == '\n' })
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	slices.Sort(list)
	return strings.Join(list, "\n")
}

// revision is the element that each transaction of the agent replaces.
func (s *served) revision(node string) string {
	s.Helper()
	text := s.node(node, "nft", "-n", "list", "set", "inet", "patchbay_services", "revision")
	_, text, _ = strings.Cut(text, "elements = {")
	text, _, found := strings.Cut(text, "}")
	if !found {
		s.Fatalf("the table of %s has no revision", node)
	}
	return text
}
