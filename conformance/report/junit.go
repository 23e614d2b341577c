// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"github.com/patchbay-net/patchbay/conformance"
)

type junitSuites struct {
	XMLName xml.Name     `xml:"testsuites"`
	Suites  []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Time     string      `xml:"time,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string        `xml:"classname,attr"`
	Name    string        `xml:"name,attr"`
	Time    string        `xml:"time,attr"`
	Failure *junitMessage `xml:"failure"`
	Skipped *junitMessage `xml:"skipped"`
}

type junitMessage struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// JUnit writes the XML that CI systems read: a suite for each plugin, and a case for each rule and version.
func JUnit(w io.Writer, all []Plugin) error {
	var out junitSuites
	for _, p := range all {
		s := junitSuite{
			Name: p.Name, Tests: len(p.Outcomes), Failures: p.Count(conformance.Failed), Skipped: p.Count(conformance.NotApplicable),
			Time: seconds(p.Milliseconds),
		}
		for _, o := range p.Outcomes {
			s.Cases = append(s.Cases, junitOf(p.Name, o))
		}
		out.Suites = append(out.Suites, s)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(out); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

func junitOf(plugin string, o conformance.Outcome) junitCase {
	c := junitCase{Class: plugin + "." + string(o.Rule.Level), Name: o.Rule.Name + " " + o.Version, Time: seconds(o.Milliseconds)}
	switch o.Verdict {
	case conformance.Failed:
		first, _, _ := strings.Cut(o.Why, "\n")
		text := o.Rule.Says + "\n" + o.Why + "\n" + strings.Join(o.Rule.Sources, "\n") + "\n\n" + Shell(o.Steps)
		c.Failure = &junitMessage{first, text}
	case conformance.NotApplicable:
		c.Skipped = &junitMessage{Message: o.Why}
	}
	return c
}

func seconds(ms int64) string { return fmt.Sprintf("%.3f", float64(ms)/1000) }
