"""Names in HTML: tags, kinds of element, and the meaning of class, id and role of an element, as bits.

Kinds of element are those of the HTML standard (whatwg.org, "Rendering" and "Tree construction"). Words of classes are
those of content systems and site builders. They are English on most sites of any language; a few of other languages are
included.
"""

from __future__ import annotations

# `Page.tag` is an index into this; 0 is any other element.
TAGS = (
    "", "html", "body", "head", "div", "span", "a", "p", "li", "ul", "ol", "dl", "dt", "dd", "h1", "h2", "h3", "h4",
    "h5", "h6", "table", "caption", "thead", "tbody", "tfoot", "tr", "td", "th", "article", "section", "main", "nav",
    "aside", "header", "footer", "hgroup", "address", "blockquote", "pre", "code", "figure", "figcaption", "form",
    "fieldset", "legend", "label", "button", "details", "summary", "dialog", "menu", "center", "hr", "search", "q",
    "cite", "em", "strong", "b", "i", "u", "s", "small", "big", "sub", "sup", "font", "tt", "kbd", "samp", "var",
    "abbr", "time", "mark", "ins", "del", "dfn", "bdi", "bdo", "ruby", "rt", "rp", "rtc", "br", "wbr", "img", "picture",
    "source", "input", "select", "option", "optgroup", "datalist", "textarea", "output", "progress", "meter", "script",
    "style", "noscript", "template", "slot", "svg", "math", "annotation", "annotation-xml", "foreignobject", "iframe",
    "object", "embed", "param", "applet", "canvas", "audio", "video", "track", "map", "area", "title", "meta", "link",
    "base", "col", "colgroup", "xmp", "plaintext", "listing", "dir", "noembed", "noframes", "frameset", "frame",
    "marquee", "strike", "acronym", "nobr", "keygen", "bgsound", "basefont", "desc", "mi", "mo", "mn", "ms", "mtext",
)  # fmt: skip

HEADINGS = "h1 h2 h3 h4 h5 h6"
VOID = "area base basefont bgsound br col embed frame hr img input keygen link meta param source track wbr"

# Text before and after one of these is not the same line of text. (`br` is a newline inside a block.)
BLOCK = (
    "html body head div p li ul ol dl dt dd h1 h2 h3 h4 h5 h6 table caption thead tbody tfoot tr td th article "
    "section main nav aside header footer hgroup address blockquote pre figure figcaption form fieldset legend "
    "details summary dialog menu center hr search noscript optgroup option xmp plaintext listing dir frameset frame "
    "marquee title col colgroup"
)
# Those of them that end an open <p>.
ENDS_P = (
    "address article aside blockquote center details dialog dir div dl fieldset figcaption figure footer form h1 h2 "
    "h3 h4 h5 h6 header hgroup hr li dd dt listing main menu nav ol p plaintext pre search section summary table ul "
    "xmp"
)
# The standard's "special" elements: an end tag of an inline element does not reach past them.
SPECIAL = (
    "address applet area article aside base basefont bgsound blockquote body br button caption center col colgroup dd "
    "details dir div dl dt embed fieldset figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header "
    "hgroup hr html iframe img input keygen li link listing main marquee menu meta nav noembed noframes noscript "
    "object ol p param plaintext pre script search section select source style summary table tbody td template "
    "textarea tfoot th thead title tr track ul wbr xmp"
)
SCOPE = "applet caption html table td th marquee object template"  # what an end tag does not reach out of
FORMATTING = "a b big code em font i nobr s small strike strong tt u"  # their end tag leaves blocks inside them open

# Content that is text to the tokenizer, whatever it looks like: as it stands (RAW), or with its references decoded
# (RCDATA).
# noscript is markup to who runs no scripts: forums keep their whole text in it
RAW = "script style xmp iframe noembed noframes"
RCDATA = "title textarea"
# Nothing of their content is shown. Ruby (rt, rp) is the reading of a word, written between its letters.
UNSEEN = (
    "script style iframe noembed noframes title textarea template object canvas audio video select datalist rt rp rtc "
    "applet annotation annotation-xml"
)
# Elements of HTML that end an <svg> or <math> that was left open.
BREAKS_OUT = (
    "b big blockquote body br center code dd div dl dt em embed h1 h2 h3 h4 h5 h6 head hr i img li listing menu meta "
    "nobr ol p pre ruby s small span strong strike sub sup table tt u ul var"
)
# Left out of `Page` where class, id and role say nothing of them.
INLINE = (
    "span a b big code em font i nobr s small strike strong tt u q cite sub sup kbd samp var abbr acronym time mark "
    "ins del dfn bdi bdo ruby rt rp rtc br wbr img picture source param track map area meta link base col slot output "
    "progress meter embed mi mo mn ms mtext annotation"
)

# `Page.head_kind`
(HEAD_TITLE, HEAD_META, HEAD_LINK, HEAD_JSON, HEAD_HTML, HEAD_BASE, HEAD_TIME, HEAD_LIST, HEAD_PRE, HEAD_CELL,
    HEAD_ITEM) = range(11)  # fmt: skip

# `Page.bits`
HIDDEN = 1 << 0  # hidden, aria-hidden="true", display:none, visibility:hidden, a dialog that is not open
VEILED = 1 << 1  # by its class: sr-only, hide, visually-hidden
FOLDED = 1 << 2  # in tabs, accordions, carousels: shown on a click
NAVIGATION = 1 << 3
PAGING = 1 << 4
HEADER = 1 << 5
FOOTER = 1 << 6
SIDEBAR = 1 << 7
SOCIAL = 1 << 8
CONSENT = 1 << 9
ADVERT = 1 << 10
RELATED = 1 << 11
NEWSLETTER = 1 << 12
POPUP = 1 << 13
LOGIN = 1 << 14
SEARCH = 1 << 15
LABELS = 1 << 16  # tags, categories
BYLINE = 1 << 17  # author, date
COMMENT = 1 << 18
FORUM = 1 << 19
REVIEW = 1 << 20
MAIN = 1 << 21
ARTICLE = 1 << 22
CONTENT = 1 << 23
SUMMARY = 1 << 24  # teaser, excerpt, lead
PRODUCT = 1 << 25
LISTING = 1 << 26
TITLE = 1 << 27
CAPTION = 1 << 28
CODE = 1 << 29
CONTENTS = 1 << 30  # table of contents
LEFT_OUT = 1 << 31  # a formula as it is drawn, beside its source; `[edit]` and ¶ beside a heading

# Values are read in lower case, each run of anything but ASCII letters as one `-`, and one `-` before and after. A
# pattern is found anywhere in that, so that `-` at its ends is a word's end. `hidden` and the like as attributes are
# seen to by the segmenter.
WORDS = {
    HIDDEN: (
        "display-none visibility-hidden -d-none- -dnone-"
    ),
    VEILED: (
        "-hidden -hide -sr-only visually visuallyhidden visually-hidden screen-reader screenreader offscreen "
        "off-screen -invisible -skip- skip-link skiplink -a-y- -print-only -noscript -noprint -no-print -versteckt "
        "-is-hidden"
    ),
    FOLDED: (
        "collaps accordion -tab- -tabs -tabpanel tab-pane tab-content toggle expand carousel slider slideshow swiper "
        "-slick flexslider -faq readmore read-more showmore show-more"
    ),
    NAVIGATION: (
        "-nav -navi nav- navbar navigation menu breadcrumb bread-crumb -crumb toolbar masthead -sitemap quick-links "
        "quicklinks -menue megamenu dropdown -drop-down hamburger -fil-ariane -migas -navega -nawigac site-links "
        "-links- linklist link-list"
    ),
    PAGING: (
        "pagination pager- -pager paginat -paging page-numbers -pagenav prev-next prevnext next-prev -next- -prev "
        "-previous nextprev post-nav load-more loadmore"
    ),
    HEADER: (
        "header topbar top-bar masthead banner -site-head -logo -brand -kopf -entete -cabecera -topline"
    ),
    FOOTER: (
        "footer -foot- copyright -legal colophon contentinfo -imprint -impressum disclaimer -pied- pied-de-page "
        "-rodape -stopka -fuss bottom-bar site-info siteinfo back-to-top backtotop"
    ),
    SIDEBAR: (
        "sidebar side-bar -aside complementary -rail- -right-rail widget secondary left-col leftcol right-col "
        "rightcol -seitenleiste -sidenav -gadget -lateral infobox"
    ),
    SOCIAL: (
        "share- -share sharing sharedaddy social facebook twitter linkedin pinterest instagram whatsapp telegram- "
        "addthis addtoany shareaholic -follow -like- -likes -tweet youtube -vk- -partage -compart"
    ),
    CONSENT: (
        "cookie consent gdpr ccpa -privacy onetrust -cmp- -cmp cookiebot didomi -osano -borlabs datenschutz eu-law"
    ),
    ADVERT: (
        "advert -ad- -ads- -adv- -adbox -adsense adsbygoogle ad-slot adslot ad-container ad-wrap -dfp -gpt sponsor "
        "promo outbrain taboola -werbung -anzeige -publicid -publicite -reklam -commercial -affiliate -googlead "
        "-doubleclick teads -mgid revcontent"
    ),
    RELATED: (
        "related recommend recirc similar -also- also-like popular trending upsell up-sell cross-sell crosssell "
        "read-next readnext up-next upnext more-from more-stories morestories you-may -youmay suggest -latest -recent "
        "-most- mostread most-read -jp-relatedposts yarpp -associated -verwandt -aehnlich -hnlich -weitere -powiazane "
        "-relacionad -voir-aussi -teaser-list further-reading next-article explore"
    ),
    NEWSLETTER: (
        "newsletter subscri signup sign-up mailchimp -mc-embed optin opt-in mailing-list mailinglist lead-form "
        "leadform -hbspt hs-form email-capture -abonn -cta- -cta call-to-action calltoaction donat"
    ),
    POPUP: (
        "popup pop-up modal overlay -dialog lightbox -drawer offcanvas off-canvas tooltip popover -toast -snackbar "
        "-interstitial -alert -notification -notice"
    ),
    LOGIN: (
        "login log-in signin sign-in -register -account -user-menu usermenu paywall pay-wall -premium -metered "
        "-membership -regwall password -logout -anmeld -connexion"
    ),
    SEARCH: (
        "search -filter facet -sort -refine -suche -recherche -buscar -pesquisa"
    ),
    LABELS: (
        "-tag- -tags -tagcloud taglist tag-list -categor -topics -keyword -label- -labels -badge -pill -chip -hashtag "
        "-taxonomy cat-links -schlagw"
    ),
    BYLINE: (
        "byline by-line author -date- -date datetime publish -posted -timestamp -time- -meta- -meta entry-meta "
        "post-meta postmeta -avatar -credit -bio- -reading-time dateline -writer -autor -auteur -fecha -datum "
        "-profile -contributor"
    ),
    COMMENT: (
        "comment -reply replies -respond disqus -discuss -komment -coment -livefyre -isso- -talkback -remark "
        "-feedback -guestbook"
    ),
    FORUM: (
        "forum thread -topic- -topic -posts- -post-body postbody post-message -message -bbcode phpbb vbulletin "
        "xenforo -answer -question -qa- -vote -upvote -signature -postbit -usertext -conversation -ugc -cooked"
    ),
    REVIEW: (
        "review rating -stars -star- testimonial -opinion -bewertung -avis- -aggregaterating trustpilot -feefo -yotpo "
        "-quote-author"
    ),
    MAIN: (
        "-main- -main -primary -maincontent main-content -main-column -hauptinhalt -mainentity -contenu-principal"
    ),
    ARTICLE: (
        "article -post- -post -entry -story -blog -single -news- -newsbody -artikel -nota- -noticia -statya -artykul "
        "hentry articlebody -blogposting -newsarticle -publication"
    ),
    CONTENT: (
        "content -body -copy- -prose -richtext rich-text -rte- wysiwyg -paragraph -inhalt -contenu -contenido -tresc "
        "mw-parser-output -markdown -editor elementor-widget-text -wp-block -field-item -docs -documentation "
        "-textbody text-block textblock"
    ),
    SUMMARY: (
        "-summary -excerpt -teaser -lead- -lede -intro -abstract -subtitle -sub-title -standfirst -dek- -deck- "
        "-snippet -preview -description -desc- -kicker -vorspann -chapo -subhead -tagline"
    ),
    PRODUCT: (
        "product -price -sku- -cart -buy -shop -variant -woocommerce -add-to -offer- -offers -stock -shipping "
        "-checkout -basket -wishlist -warenkorb -preis -precio -prix -spec- -specs specification -attribute -merchant "
        "-deal -bundle -ingredient -recipe"
    ),
    LISTING: (
        "-list- -list -listing -item- -item -items -itemlist -grid -card -result -tile -archive -catalog -collection "
        "-gallery -loop- -feed -cell -directory -index-"
    ),
    TITLE: (
        "title headline -heading -hero -titel -titre -titulo -name-"
    ),
    CAPTION: (
        "caption -figure -image -img- -photo -picture -thumb -media- -video -credit -attachment -foto -bild"
    ),
    CODE: (
        "-code -highlight -syntax hljs prettyprint codehilite -crayon -gist -blob-code -sourcecode -language- "
        "-terminal -console -codeblock -snippet-code"
    ),
    CONTENTS: (
        "-toc- -toc table-of-contents tableofcontents -contents- -on-this-page -outline -anchors -jump -inpage "
        "-in-page -ez-toc -inhaltsverzeichnis"
    ),
    LEFT_OUT: (
        "-katex-html- -mathjax-preview- -mathjax-chtml- -mathjax-svg- -mathjax-display- -mjx-chtml- -mw-editsection- "
        "-editsection- -headerlink-"
    ),
}  # fmt: skip

# Meta tags that are looked at by name; beside these, those whose names end or begin so: they describe the page, or say
# that it sells something.
META_NAMES = (
    "", "og:title", "twitter:title", "citation_title", "dc.title", "dcterms.title", "title", "headline", "author",
    "article:author", "article:author_name", "citation_author", "dc.creator", "dcterms.creator", "parsely-author",
    "sailthru.author", "article:published_time", "og:article:published_time", "datepublished", "article:published",
    "date", "dc.date.issued", "dc.date", "dcterms.created", "dcterms.date", "citation_publication_date",
    "citation_date", "publish-date", "publishdate", "pubdate", "parsely-pub-date", "sailthru.date",
    "og:published_time", "article:modified_time", "og:updated_time", "description", "og:description", "og:site_name",
    "og:locale", "og:url", "og:type", "twitter:label1", "twitter:label2", "twitter:data1", "twitter:data2",
)  # fmt: skip
DESCRIBING = ("description", ":title", "headline")
OF_PRODUCTS = ("product:", "og:price")

# What a page says it is.
KNOWN = ("article", "product", "website", "news", "forum", "list", "recipe", "faq", "place", "event", "video")
# What schema.org's types and og:type say a page is; the first that is there names its kind.
KIND_OF = {
    "forum": {"discussionforumposting", "qapage", "socialmediaposting"},
    "product": {"product", "productgroup", "individualproduct", "vehicle", "car", "og:product", "product.item",
    "product.group", "og:product.item", "book.product"},
    "recipe": {"recipe"},
    "news": {"newsarticle", "reportagenewsarticle", "analysisnewsarticle", "opinionnewsarticle", "liveblogposting"},
    "article": {"article", "blogposting", "report", "scholarlyarticle", "techarticle", "advertisercontentarticle",
    "medicalscholarlyarticle", "og:article", "blog"},
    "event": {"event", "musicevent", "sportsevent", "businessevent", "educationevent", "theaterevent", "festival"},
    "video": {"videoobject", "og:video", "og:video.other", "og:video.movie", "movie", "tvseries", "tvepisode"},
    "faq": {"faqpage"},
    "list": {"itemlist", "collectionpage", "searchresultspage", "offercatalog", "og:product.group"},
    "place": {"localbusiness", "restaurant", "hotel", "store", "place", "touristattraction", "medicalclinic",
    "dentist", "homeandconstructionbusiness"},
    "website": {"og:website"},
}  # fmt: skip
